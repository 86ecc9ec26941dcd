"""The store: the journal and the tables a person may query; SQL is spoken only here."""
