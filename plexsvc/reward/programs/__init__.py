"""Programs that score samples: what each stage of them does."""
