"""The commands of plexctl, a module for each."""
