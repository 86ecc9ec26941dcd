"""Front for clients of the Tinker SDK: sessions, training, sampling and `tinker://` names."""
