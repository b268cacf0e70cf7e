"""Word lists of the domain: names, pairs, and what can be repeated."""

from __future__ import annotations

NAMES = (
    "Anna Ben Carl Clara Daniel David Ella Emily Emma Eric Eva Frank George Grace Hannah Harry"
    " Helen Henry Ian Isabel Jack James Jane Jenny John Julia Karen Kate Kevin Laura Leo Linda"
    " Lisa Lucy Maria Mark Martin Mary Max Mia Michael Mike Nina Noah Nora Oliver Olivia Oscar"
    " Paul Peter Rachel Richard Robert Rosa Sam Sarah Simon Sofia Steve Susan Thomas Tim Tom"
    " Tony Victor Victoria William Alex Alice Amy Andrew Bob Charlie Chris Diana Lily Lena Zoe"
).split()

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "England": "London", "Portugal": "Lisbon", "Greece": "Athens", "Austria": "Vienna",
    "Poland": "Warsaw", "Sweden": "Stockholm", "Norway": "Oslo", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Ireland": "Dublin", "Russia": "Moscow", "China": "Beijing",
    "Japan": "Tokyo", "Korea": "Seoul", "India": "New Delhi", "Egypt": "Cairo",
    "Turkey": "Ankara", "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia",
    "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Argentina": "Buenos Aires",
    "Australia": "Canberra", "Hungary": "Budapest", "Belgium": "Brussels", "Scotland": "Edinburgh",
    "Iceland": "Reykjavik", "Thailand": "Bangkok", "Kenya": "Nairobi", "Vietnam": "Hanoi",
    "Ukraine": "Kiev", "Romania": "Bucharest", "the United States": "Washington",
    "Switzerland": "Bern",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "old": "young", "fast": "slow", "high": "low", "long": "short",
    "light": "dark", "happy": "sad", "good": "bad", "hard": "soft", "open": "closed",
    "full": "empty", "early": "late", "left": "right", "up": "down", "in": "out", "on": "off",
    "day": "night", "yes": "no", "strong": "weak", "rich": "poor", "clean": "dirty", "wet": "dry",
    "loud": "quiet", "new": "old", "black": "white", "near": "far", "thick": "thin",
    "first": "last", "always": "never", "friend": "enemy", "love": "hate", "summer": "winter",
    "north": "south", "east": "west", "cheap": "expensive", "easy": "difficult", "warm": "cool",
    "true": "false", "small": "big", "cold": "hot", "slow": "fast", "sad": "happy",
    "night": "day",
}  # fmt: skip

SOUNDS = {
    "cat": "meow", "dog": "woof", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink",
    "lion": "roar", "horse": "neigh", "bee": "buzz", "snake": "hiss", "frog": "ribbit",
    "owl": "hoot", "mouse": "squeak", "bird": "tweet", "wolf": "howl",
    "rooster": "cock a doodle doo", "hen": "cluck", "goat": "meh", "bear": "growl",
    "donkey": "hee haw",
}  # fmt: skip

COLOURS_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "blood": "red",
    "a lemon": "yellow", "coal": "black", "a tomato": "red", "a frog": "green", "the sun": "yellow",
    "the sea": "blue", "an elephant": "grey", "a carrot": "orange", "milk": "white",
    "chocolate": "brown", "a strawberry": "red", "a leaf": "green", "a flamingo": "pink",
}  # fmt: skip

LEGS = {
    "a dog": "four", "a cat": "four", "a bird": "two", "a spider": "eight", "an ant": "six",
    "a horse": "four", "a fish": "no", "a snake": "no", "a duck": "two", "a person": "two",
    "a bee": "six", "a chair": "four",
}  # fmt: skip

BABIES = {
    "a dog": "a puppy", "a cat": "a kitten", "a cow": "a calf", "a sheep": "a lamb",
    "a horse": "a foal", "a hen": "a chick", "a pig": "a piglet", "a duck": "a duckling",
    "a bear": "a cub", "a frog": "a tadpole",
}  # fmt: skip

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

REPEATED = (
    "apple arm autumn baby bag ball balloon banana bank basket bath beach bean bear beard bed"
    " bee bell belt bench bicycle bird biscuit blanket blossom blue boat body bone book boot"
    " bottle bowl box boy bread breakfast brick bridge brother brown brush bucket bus butter"
    " butterfly button cake camel camera candle candy car card carpet carrot castle cat chair"
    " cheese cherry chicken child chocolate church circle city clock cloud coat coffee coin comb"
    " computer cookie copper corn cotton cow cream crown cup curtain dance daughter desk diamond"
    " dinner doctor dog doll dolphin donkey door dragon dream dress drum duck eagle ear earth"
    " egg elbow elephant engine evening eye face family farm farmer father feather field finger"
    " fire fish flag floor flower fly foot forest fork fountain fox friend frog fruit garden"
    " garlic gate ghost giant giraffe girl glass glove goat gold grandfather grandmother grape"
    " grass green guitar hair hammer hand hat head heart hill holiday honey horse hospital hotel"
    " house hunter ice island jacket jar jelly jewel juice jungle kettle key king kitchen kite"
    " knee knife ladder lake lamb lamp leaf lemon lesson letter library light lion lip list"
    " lizard lunch machine magic map market meadow meat melon metal milk mirror money monkey"
    " moon morning mother mountain mouse mouth movie museum mushroom music nail name neck needle"
    " nest night nose notebook number nurse nut ocean oil onion orange oven owl page paint"
    " palace pancake paper parent park party pasta path peach peanut pear pen pencil penguin"
    " people pepper phone piano picnic picture pie pig pillow pilot pineapple pink pirate pizza"
    " planet plant plate player pocket poem pony potato present prince princess pumpkin puppet"
    " purple puzzle queen question rabbit radio rain rainbow red restaurant ribbon rice ring"
    " river road robot rocket roof room root rope rose rubber salad salt sand sandal sandwich"
    " school science scissors sea seed shadow shark sheep shell ship shirt shoe shop shoulder"
    " silver sister skin skirt sky sleep smile smoke snail snake snow soap sock sofa soldier son"
    " song soup space spider spinach spoon spring square squirrel stamp star station stone storm"
    " story strawberry street string student sugar summer sun sunday sunflower supper swan"
    " sweater swing table tail tea teacher team teeth telephone television temple tennis tent"
    " theatre thunder ticket tiger toast toe tomato tongue tooth towel tower town toy tractor"
    " train treasure tree triangle truck trumpet tulip turkey turtle umbrella uncle valley"
    " vegetable village violin voice wagon wall wallet walnut watch water wave weather whale"
    " wheat wheel whistle white wind window wing winter wolf woman wood wool word work world"
    " worm writer yellow yogurt zebra zoo"
).split()

ADJECTIVES = "big small red blue green happy old new little good cold warm".split()

SCENE_COLOURS = "red green blue yellow orange purple pink black white brown".split()
SCENE_SHAPES = "circle square triangle star heart cross".split()
