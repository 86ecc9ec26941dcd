"""The driver of the core: journals events, asks the core, hands its actions on."""
