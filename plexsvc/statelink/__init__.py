"""Client of the state manager: data plane, session, regions, mapped memory."""
