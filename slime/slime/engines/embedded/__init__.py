"""The embedded engine: a small server of SGLang's native dialect over transformers, for a CPU or one GPU.

    HTTP (server) ──Sequence──▶ EngineLoop (own thread) ──flat step──▶ RaggedModel ──attention──▶ KVSlots
         ▲                          │ schedule, run, sample
         └──────── one call_soon_threadsafe a step: tokens of streams, ends of requests ──┘

`python -m slime.engines.embedded --model-path DIR --port 30000` starts one.
"""
