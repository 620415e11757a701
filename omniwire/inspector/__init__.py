"""The commands `omniwire check` and `omniwire inspect`: what is in a file that `save` wrote.

- `source` opens a file and judges what it holds.
- `fields` says what a value is and what it consists of, `tree` cuts that to what a person can
  read, `sizes` tells what takes bytes; `items` says which items a request has, `item_table` has
  them as rows, `strip` where in the prompt they are: all of these for any front end.
- `terminal` prints an inspection, with `prompt` for the items; `page` makes it an HTML page.
- `command` holds the two click commands.
- `text` makes whatever came from a file safe to print.
"""
