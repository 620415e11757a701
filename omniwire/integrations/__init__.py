"""What other projects emit, described in this project's terms; nothing here imports them."""
