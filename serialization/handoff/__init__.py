"""The handoff: contract objects between processes of one host, without copying tensors twice."""

from omniwire.serialization.handoff.channel import Channel
from omniwire.serialization.handoff.recording import RecordedMessage, Recording, recorded
from omniwire.serialization.handoff.server import ChannelServer
from omniwire.serialization.handoff.sharing import broadcast, wait

__all__ = [
    "Channel",
    "ChannelServer",
    "RecordedMessage",
    "Recording",
    "broadcast",
    "recorded",
    "wait",
]
