"""What users may import, and what an import costs."""

import importlib
import subprocess
import sys

import pytest

import trackside

PUBLIC = {
    "trackside": [
        "Batch",
        "ConfigDict",
        "DataloaderModule",
        "Logger",
        "LoggerConfig",
        "ModelConfig",
        "OptimizerConfig",
        "ParallelConfig",
        "Run",
        "SchedulerConfig",
        "TracksideError",
        "Trainer",
        "TrainerConfig",
        "TrainerModule",
        "apply_overrides",
        "callbacks",
        "compare",
        "config",
        "decoding",
        "errors",
        "events",
        "findings",
        "fuse_steps",
        "fusing",
        "load_config",
        "logger",
        "measured_run",
        "metrics",
        "open_run",
        "profiling",
        "register",
        "report",
        "run",
        "runs",
        "save_config",
        "testing",
        "trace",
        "trainer",
    ],
    "trackside.callbacks": [
        "Callback",
        "CallbackConfig",
        "CallbackList",
        "CheckpointConfig",
        "EMA",
        "EMAConfig",
        "EarlyStopping",
        "EarlyStoppingConfig",
        "JAXProfiler",
        "JaxProfiler",
        "JaxProfilerConfig",
        "LearningRateMonitor",
        "LearningRateMonitorConfig",
        "MemoryProfileConfig",
        "MemoryProfiler",
        "ModelCheckpoint",
        "ProfilingConfig",
        "ProgressBarCallback",
        "ProgressBarConfig",
        "TrainerView",
    ],
    "trackside.compare": [
        *("Cause", "Comparison", "Difference", "MetricChange", "MetricPair", "MetricValue", "StepTimeChange"),
        "compare_runs",
    ],
    "trackside.config": ["ConfigDict", "apply_overrides", "load_config", "register", "save_config"],
    "trackside.decoding": ["R2", "make_step", "mse_loss", "r2_score", "train_decoding_jax", "train_decoding_torch"],
    "trackside.errors": [
        "CaptureError",
        "CheckpointError",
        "ConfigError",
        "DataError",
        "EventFileError",
        "MetricError",
        "MissingExtraError",
        "NonFiniteError",
        "RecompileError",
        "RunError",
        "TraceError",
        "TracksideError",
    ],
    "trackside.events": ["EventLog", "EventWriter", "NullEventWriter", "read_events"],
    "trackside.findings": [
        "EpochFacts",
        "FINDING_IDS",
        "FactCollector",
        "Finding",
        "LoaderFacts",
        "RULES",
        "Rule",
        "RunFacts",
        "SEVERITIES",
        "Severity",
        "ToolFacts",
        "facts_from_events",
        "find",
        "find_all",
        "render_findings",
        "split_silenced",
    ],
    "trackside.logger": [
        "LOGGER",
        "FileLogger",
        "FileLoggerConfig",
        "Logger",
        "LoggerConfig",
        "LoggerTool",
        "LoggerToolsConfig",
        "TensorBoardLogger",
        "TensorBoardLoggerConfig",
        "WandBLogger",
        "WandBLoggerConfig",
    ],
    "trackside.measured_run": ["MeasuredRun", "run"],
    "trackside.metrics": [
        "LOG_MODES",
        "HostMetrics",
        "MetricLayout",
        "MetricSpec",
        "Metrics",
        "StepMetric",
        "add_step_metrics",
        "check_log_modes",
        "reset_metrics",
        "to_host_metrics",
    ],
    "trackside.profiling": [
        "CaptureError",
        "Ledger",
        "LedgerTotals",
        "RecompileError",
        "RecompileSentinel",
        "TrainingProfiler",
        "get_profiler",
        "log_profiling_metrics",
        "profile_data_loader",
        "profile_jax_loss_fn",
        "profile_make_step",
        "profile_operation",
    ],
    "trackside.report": [
        "RunSummary",
        "render_comparison_html",
        "render_summary",
        "show_report",
        "summarise_run",
        "write_comparison_html",
        "write_html_report",
    ],
    "trackside.runs": [
        "Host",
        "HostTable",
        "Leg",
        "MetricTable",
        "Plots",
        "Run",
        "RunAxes",
        "RunError",
        "SilentHost",
        "SlowHost",
        "StepTimes",
        "find_runs",
        "open_run",
    ],
    "trackside.testing": [
        "assert_idle_share",
        "assert_no_recompiles",
        "assert_peak_bytes",
        "assert_run_compiled_once",
        "assert_scope_share",
        "assert_steps_per_second",
        "capture_function",
    ],
    "trackside.trace": ["TraceError", "TraceReport", "analyse_trace", "render_report", "step_markers"],
    "trackside.trainer": [
        "LOGGER",
        "Batch",
        "BatchLimit",
        "DataloaderModule",
        "FunctionModel",
        "LearningRateTest",
        "LossScaleConfig",
        "ModelConfig",
        "ModelSummary",
        "OptimizerConfig",
        "ParamGroupConfig",
        "ParallelConfig",
        "PrecisionConfig",
        "SchedulerConfig",
        "TrainState",
        "Trainer",
        "TrainerConfig",
        "TrainerModule",
        "exit_with_parent",
        "register_optimizer",
        "register_schedule",
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    """The public names are these and no others, and each can be imported."""
    imported = importlib.import_module(module)
    assert sorted(imported.__all__) == sorted(PUBLIC[module])
    for name in imported.__all__:
        assert getattr(imported, name) is not None


def test_unknown_name_lists_those_that_exist() -> None:
    """A misspelt name is an AttributeError that lists the names."""
    with pytest.raises(AttributeError, match="TrainerModule"):
        _ = trackside.TrainerModul  # pyright: ignore[reportAttributeAccessIssue]


def loaded_after(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(out.stdout.split())


def test_import_is_lazy() -> None:
    """Importing trackside imports none of its dependencies."""
    heavy = {"jax", "numpy", "flax", "optax", "tqdm", "rich", "msgspec", "yaml", "tyro", "plotly"}
    assert not heavy & loaded_after("import trackside")


@pytest.mark.parametrize(
    "module",
    ["events", "config", "errors", "clock", "optional", "schedule", "trace", "findings", "runs", "compare", "report"],
)
def test_parts_that_work_without_jax(module: str) -> None:
    """What reads and describes runs does not need jax."""
    assert "jax" not in loaded_after(f"import trackside.{module}")


def test_training_does_not_import_extras() -> None:
    """Optional packages are imported only when their tool is used."""
    extras = {"wandb", "tensorboardX", "torch", "equinox", "flax", "sklearn"}
    assert not extras & loaded_after("import trackside.trainer, trackside.logger, trackside.callbacks")
