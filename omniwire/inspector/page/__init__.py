"""An inspection as one HTML page that needs nothing else: `omniwire inspect FILE --html OUT`.

- `render` fills the template `page.html`, into which `page.css` and `page.js` go.
- `lines` draws the prompt, `chunks` cuts it into chunks, `bars` draws partitions.
- `media` finds what looks like an image or a sound; `pictures` and `sounds` draw it.
"""
