"""One typed tree of settings; flags, environment, YAML and documentation are generated from it."""

from slime.config.sections import (
    CheckpointConfig,
    ClusterConfig,
    Config,
    EngineConfig,
    JudgeConfig,
    LossConfig,
    ModelConfig,
    MonitorConfig,
    PluginConfig,
    RolloutConfig,
    ServerConfig,
    TrainerConfig,
)

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "EngineConfig",
    "JudgeConfig",
    "LossConfig",
    "ModelConfig",
    "MonitorConfig",
    "PluginConfig",
    "RolloutConfig",
    "ServerConfig",
    "TrainerConfig",
]
