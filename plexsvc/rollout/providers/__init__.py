"""Providers of spot devices."""
