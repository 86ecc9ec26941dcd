"""Devices: who contends, who is granted, context switches, room, learned cycles."""
