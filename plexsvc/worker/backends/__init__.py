"""Training backends behind one protocol; each foreign engine is known to one module here."""
