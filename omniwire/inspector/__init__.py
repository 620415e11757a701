"""The commands `omniwire check` and `omniwire inspect`: what is in a file that `save` wrote.

- `source` opens a file and judges what it holds.
- `fields` says what a value is and what it consists of, `items` which items a request has,
  `strip` where in the prompt they are: all three for any front end.
- `terminal` prints an inspection; `command` holds the two click commands.
- `text` makes whatever came from a file safe to print.
"""
