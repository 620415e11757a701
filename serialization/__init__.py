"""Contracts as bytes: a strict msgpack header, and tensors beside it that are never copied.

`encode` gives frames, `dumps` one buffer, `save` a file; `decode`, `loads` and `load` read
them back. No pickle is involved and no name from a message is looked up anywhere but in
closed tables, so a message from an untrusted peer can at worst raise `DecodeError`.

How an object travels, in short; docs/reference/wire-format.md is the specification:

- Frame 0 is one msgpack value: magic, version, oldest reader, checksum, body (`envelope`).
- The body has the type's name, its value and the size of every other frame (`codec`).
- A record is a map of field name to value; a field that is absent has its default
  (`converter`). In a payload, where anything may stand, a record carries its type's name
  (`reading`).
- Long sequences of integers are packed (`extensions`).
- A tensor's logical bytes sit in the header up to 512 bytes, in one shared frame below 64 KiB,
  and from there on in a frame of their own that aliases the tensor (`buffer_writer`).
- Decoded tensors alias the frames (`buffer_reader`), which they keep alive. They are read-only
  by contract. What a write does all the same depends on the memory: in `bytes` it changes an
  object that Python holds immutable, in a `bytearray` whatever else uses it, in a mapping made
  by `load` a private page. Memory mapped for reading only is copied (`pages`).

>>> import omniwire as ow, torch
>>> params = ow.MultimodalParams(multimodal_data={"image": {"pixel_values": torch.zeros(4, 8)}})
>>> request = ow.ProcessedRequest("r1", [1, 5, 2], params)
>>> ow.loads(ow.dumps(request)) == request
True
"""

from omniwire.serialization.blob import dumps, loads
from omniwire.serialization.codec import decode, encode
from omniwire.serialization.envelope import WIRE_VERSION
from omniwire.serialization.files import load, save
from omniwire.serialization.handoff import (
    Channel,
    ChannelServer,
    RecordedMessage,
    Recording,
    broadcast,
    recorded,
    wait,
)
from omniwire.serialization.limits import Limits

__all__ = [
    "WIRE_VERSION",
    "Channel",
    "ChannelServer",
    "Limits",
    "RecordedMessage",
    "Recording",
    "broadcast",
    "decode",
    "dumps",
    "encode",
    "load",
    "loads",
    "recorded",
    "save",
    "wait",
]
