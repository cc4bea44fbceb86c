"""At which versions of a package an argument, a name, a module or a variable exists.

From `data/diagnose/versions/`, which `tools/name_versions.py` makes of published wheels. It lists
what is not in every version between `first` and `last`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
from packaging.specifiers import SpecifierSet

from imgbuild.system import files, yaml_data
from imgbuild.values import normalize

Group = Mapping[str, str]  # versions → names, separated by spaces

# Packages whose configurations extend those of another, whose arguments they take.
EXTENDS = {"trl": "transformers", "unsloth": "transformers", "verl": "vllm"}
# Import names that differ from those of the package.
IMPORT_NAMES = {
    "flash_attn": "flash-attn", "flashinfer": "flashinfer-python", "sgl_kernel": "sgl-kernel",
    "cv2": "opencv-python-headless", "yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit-learn",
    "google.protobuf": "protobuf", "attr": "attrs", "hydra": "hydra-core", "git": "gitpython",
    "pynvml": "nvidia-ml-py", "apex": "NVIDIA's apex (built from its git repository)",
    "transformer_engine": "transformer-engine", "megatron": "megatron-core", "swift": "ms-swift",
    "unsloth_zoo": "unsloth-zoo", "pkg_resources": "setuptools<81", "distutils": "setuptools",
    "Crypto": "pycryptodome", "dotenv": "python-dotenv", "zmq": "pyzmq", "dateutil": "python-dateutil",
    "skimage": "scikit-image", "bs4": "beautifulsoup4", "OpenSSL": "pyopenssl", "tensorrt_llm": "tensorrt-llm",
    "mpi4py": "mpi4py", "llamafactory": "llamafactory", "deep_gemm": "DeepGEMM (from its git repository)",
    "deep_ep": "DeepEP (from its git repository)", "fused_layer_norm_cuda": "apex with its CUDA extensions",
    "qwen_vl_utils": "qwen-vl-utils", "mathruler": "mathruler", "latex2sympy2_extended": "latex2sympy2-extended",
    "math_verify": "math-verify", "nvidia_smi": "nvidia-ml-py", "flash_attn_interface": "FlashAttention 3 (hopper/)",
    "flash_attn_2_cuda": "flash-attn", "flash_attn_cuda": "flash-attn<2",
}  # fmt: skip


class PackageNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a package had between two versions; an empty range of versions is impossible."""

    package: str
    first: str
    last: str
    arguments: Mapping[str, Group] = {}
    names: Mapping[str, Group] = {}
    modules: Group = {}
    members: Mapping[str, Group] = {}
    environment: Group = {}
    symbols: Group = {}

    def lookup(self, group: Group, name: str) -> str | None:
        """The versions that have `name`; None if it is not in the group."""
        return next((spec for spec, names in group.items() if name in names.split()), None)

    def now(self, group: Group) -> list[str]:
        """The names of a group that the last version has."""
        return [
            name for spec, names in group.items() if spec == "all" or "<" not in spec
            for name in names.split()
        ]  # fmt: skip


class Existence(msgspec.Struct, frozen=True, kw_only=True):
    """Where something exists: `spec` of `package`, "" in no version between `first` and `last`.

    `instead` is what the newest version has in its place; "" if unknown.
    """

    package: str
    spec: str
    first: str
    last: str
    instead: str = ""

    @property
    def gone(self) -> str:
        """The version that removed it; "" if it was added and not removed."""
        return self.spec.rpartition("<")[2] if "<" in self.spec else ""

    @property
    def since(self) -> str:
        """The version that added it; "" if the first that was read has it."""
        return self.spec.partition(",")[0].removeprefix(">=") if ">=" in self.spec else ""

    def says(self, what: str) -> str:
        """A sentence on `what`."""
        if not self.spec:
            text = f"no {self.package} from {self.first} to {self.last} has {what}"
        elif self.gone and self.since:
            text = f"{what} is in {self.package} {self.since} to before {self.gone} only"
        elif self.gone:
            text = f"{self.package} {self.gone} removed {what}"
        else:
            text = f"{what} came with {self.package} {self.since}"
        return f"{text}; there is {self.instead} instead" if self.instead else text

    def cure(self) -> str:
        """The pin that has it."""
        return f"{self.package}{self.spec}" if self.spec else ""

    def fits(self, version: str) -> bool:
        """Whether a version has it, as far as `spec` says."""
        return bool(self.spec) and version in SpecifierSet(self.spec, prereleases=True)


@lru_cache(maxsize=1)
def load() -> dict[str, PackageNames]:
    """All packages by their import name."""
    values = [
        yaml_data.load(path, PackageNames)
        for path in sorted(files.data("diagnose/versions").glob("*.yaml"))
    ]
    return {value.package.replace("-", "_"): value for value in values}


# Replacements that no two names show by their likeness.
RENAMED = {
    ("SFTTrainer", "tokenizer"): "processing_class", ("GRPOTrainer", "tokenizer"): "processing_class",
    ("DPOTrainer", "tokenizer"): "processing_class", ("Trainer", "tokenizer"): "processing_class",
    ("RewardTrainer", "tokenizer"): "processing_class", ("PPOTrainer", "tokenizer"): "processing_class",
    ("SFTConfig", "max_seq_length"): "max_length", ("SFTTrainer", "max_seq_length"): "SFTConfig(max_length=…)",
    ("SFTTrainer", "dataset_text_field"): "SFTConfig(dataset_text_field=…)",
    ("SFTTrainer", "packing"): "SFTConfig(packing=…)", ("DPOTrainer", "beta"): "DPOConfig(beta=…)",
    ("TrainingArguments", "evaluation_strategy"): "eval_strategy",
    ("TrainingArguments", "no_cuda"): "use_cpu",
    ("AsyncEngineArgs", "disable_log_requests"): "enable_log_requests",
    ("SamplingParams", "guided_decoding"): "structured_outputs",
    ("EngineArgs", "guided_decoding_backend"): "structured_outputs_config",
}  # fmt: skip


def argument(callee: str, name: str) -> Existence | None:
    """Where the callable `callee` (`SFTTrainer`, `LLM.generate`) takes the argument `name`.

    None if no callable of that name is known.
    """
    callee = callee.removesuffix(".__init__")
    for package in load().values():
        group = package.arguments.get(callee)
        if group is None:
            continue
        for other in (package, load().get(EXTENDS.get(package.package, ""))):
            if other is None:
                continue
            callees = [callee] if other is package else ["TrainingArguments"]
            for each in callees:
                at = other.arguments.get(each, {})
                spec = other.lookup(at, name)
                if spec is not None:
                    instead = RENAMED.get((each, name)) or RENAMED.get((callee, name)) or ""
                    instead = instead if "<" in spec else ""
                    return Existence(
                        package=other.package, spec=spec, first=other.first, last=other.last,
                        instead=instead,
                    )  # fmt: skip
        near = difflib.get_close_matches(name, package.now(group), 1, 0.75)
        return Existence(
            package=package.package, spec="", first=package.first, last=package.last,
            instead=near[0] if near else "",
        )  # fmt: skip
    return None


# What a class is derived from, by the end of its name, for members that it inherits.
BASES = {
    "Tokenizer": "PreTrainedTokenizerBase", "TokenizerFast": "PreTrainedTokenizerBase",
    "TokenizersBackend": "PreTrainedTokenizerBase", "ForCausalLM": "PreTrainedModel", "Model": "PreTrainedModel",
    "ForConditionalGeneration": "PreTrainedModel", "Config": "PretrainedConfig", "Processor": "ProcessorMixin",
    "Cache": "DynamicCache", "Trainer": "Trainer", "Arguments": "TrainingArguments",
}  # fmt: skip


def member(owner: str, name: str) -> Existence | None:
    """Where the class `owner` has a method or field; None if nothing is known of it."""
    above = next((base for end, base in BASES.items() if owner.endswith(end)), owner)
    for each in dict.fromkeys((owner, above)):
        for package in load().values():
            group = {**package.members.get(each, {})}
            spec = package.lookup(group, name) or package.lookup(
                package.arguments.get(each, {}), name
            )
            if spec is not None:
                return Existence(
                    package=package.package, spec=spec, first=package.first, last=package.last,
                    instead=RENAMED.get((each, name), "") if "<" in spec else "",
                )  # fmt: skip
    return None


def name_in(module: str, name: str) -> Existence | None:
    """Where `from module import name` works; None if nothing is known of it."""
    package = load().get(module.partition(".")[0])
    if package is None:
        return None
    spec = package.lookup(package.names.get(module, {}), name)
    if spec is None:
        return None
    return Existence(package=package.package, spec=spec, first=package.first, last=package.last)


def module_in(module: str) -> Existence | None:
    """Where a module exists; None if nothing is known of it."""
    package = load().get(module.partition(".")[0])
    if package is None:
        return None
    for path in _above(module):
        spec = package.lookup(package.modules, path)
        if spec is not None:
            return Existence(
                package=package.package, spec=spec, first=package.first, last=package.last
            )
    return None


def variable(name: str) -> Existence | None:
    """Which versions read a variable; None for one of a package that is not read."""
    package = next(
        (each for each in load().values()
         if each.environment and name.startswith(f"{each.package.upper()}_")), None,
    )  # fmt: skip
    if package is None:
        return None
    spec = package.lookup(package.environment, name)
    if spec == "all":
        return None
    near: list[str] = []
    if spec is None:
        near = difflib.get_close_matches(name, package.now(package.environment), 1, 0.9)
    return Existence(
        package=package.package, spec=spec or "", first=package.first, last=package.last,
        instead=near[0] if near else "",
    )  # fmt: skip


def symbol(name: str) -> Existence | None:
    """Which versions of torch export a symbol of its libraries libc10 and libc10_cuda.

    None for a symbol that all of them have, or that is another library's.
    """
    package = load().get("torch")
    spec = package.lookup(package.symbols, name) if package is not None else None
    if package is None or spec is None:
        return None
    return Existence(package="torch", spec=spec, first=package.first, last=package.last)


def distribution(module: str) -> str:
    """The package to install for a module, by its import name."""
    top = module.partition(".")[0]
    return IMPORT_NAMES.get(module) or IMPORT_NAMES.get(top) or normalize(top)


def _above(module: str) -> Iterator[str]:
    """A module and the packages around it."""
    while module:
        yield module
        module = module.rpartition(".")[0]
