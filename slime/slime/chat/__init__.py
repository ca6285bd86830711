"""The model's chat format: messages to token ids (`rendering`), sampled text to messages (`reply_parser`)."""

from slime.chat.rendering import ChatFormat
from slime.chat.reply_parser import Delta, ReplyParser

__all__ = ["ChatFormat", "Delta", "ReplyParser"]
