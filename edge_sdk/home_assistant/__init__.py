"""What Home Assistant is told of a device, so that it finds it by itself; docs/home-assistant.md."""

from edge_sdk.home_assistant.discovery import Discovery
from edge_sdk.home_assistant.entities import Camera, Machine
from edge_sdk.home_assistant.settings import HomeAssistantSettings

__all__ = ["Camera", "Discovery", "HomeAssistantSettings", "Machine"]
