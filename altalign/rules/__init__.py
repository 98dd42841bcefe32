"""The rules in words: what each reason means, and the setting that it is held against."""
