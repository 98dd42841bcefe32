"""The dual encoder and its towers."""
