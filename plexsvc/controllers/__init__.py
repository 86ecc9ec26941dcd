"""Controllers, the users' programs: submitted, supervised, logged."""
