from openai import OpenAI

question = [{"type": "input_text", "text": "What is seven plus five?"}]
client = OpenAI(base_url="http://localhost:8006/v1", api_key="none")
with client.realtime.connect(model="minicpm-o-4.5") as call:
    call.conversation.item.create(item={"type": "message", "role": "user", "content": question})
    call.response.create()
    while (event := call.recv()).type != "response.done":
        print(event.delta if event.type == "response.output_audio_transcript.delta" else "", end="")
