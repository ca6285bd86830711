"""The scripted engine: says what it was told to say, with honest ids and log-probs, and fails on demand.

    Script (words, tokens, declared log-probs) ─▶ ScriptedCore (requests, pauses, versions, faults)
                                               ─▶ ScriptedApp: the dialect over HTTP, `python -m slime.engines.scripted`

Tests, demos and the server's benchmark use it where a model would only cost time; it ships, so tests need no mock.
"""
