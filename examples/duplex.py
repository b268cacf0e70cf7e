from minicpmo_live import Client, read_wav

with Client("http://localhost:8006").duplex() as call:
    for event in call.play(read_wav("examples/hello.wav")):
        if event.type == "result":
            print("listens" if event.is_listen else f"says {event.text!r}")
