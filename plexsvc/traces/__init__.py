"""Traces: spans of operations, made from the journal after the fact, and sent by OTLP."""
