"""The main job, `omniwire demo`: real media through a processor and an executor process.

The data path is omniwire's public API and nothing else. What lives here is what a user of
omniwire brings along: media loading, models, processes and printing.
"""
