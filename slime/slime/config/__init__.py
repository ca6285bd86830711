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
    PromptConfig,
    RolloutConfig,
    ServerConfig,
    TeacherConfig,
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
    "PromptConfig",
    "RolloutConfig",
    "ServerConfig",
    "TeacherConfig",
    "TrainerConfig",
]
