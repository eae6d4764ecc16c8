"""Says how many people each camera sees, whenever that changes: python3 count.py BROKER [PORT]."""

import json
import sys

import paho.mqtt.client as mqtt

seen: dict[str, int] = {}


def count(_client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
    """One result of one camera."""
    result = json.loads(message.payload)
    people = sum(found["label"] == "person" for found in result["detections"])
    if seen.get(message.topic) != people:
        seen[message.topic] = people
        print(f"{result['captured_at']} {result['device']}/{result['camera']}: {people}", flush=True)


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
client.on_connect = lambda *_: client.subscribe("edge/v1/+/+/result/+")
client.on_message = count
client.connect(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1883)
client.loop_forever()
