package extract

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestTinyRelease is about every form of declaration that is read: testdata/tiny.json was compared with its sources by
// eye.
func TestTinyRelease(t *testing.T) {
	p, gaps, err := extractFrom(t, tiny(t))
	if err != nil || len(gaps) > 0 {
		t.Fatalf("%v, gaps %v", err, gaps)
	}
	got := profileText(t, p)
	if *update {
		require.NoError(t, os.WriteFile("testdata/tiny.json", []byte(got), 0o644))
	}
	require.NoDiff(t, cmp.Diff(readText(t, "testdata/tiny.json"), got), "-want +got")
}

// An edit replaces a text of a file; all of it if the old text is empty, and the file itself if the new one is "gone".
type edit struct{ file, old, replacement string }

const gone = "\x00"

const (
	engineFile      = "vllm/v1/engine/__init__.py"
	coreFile        = "vllm/v1/engine/core.py"
	clientFile      = "vllm/v1/engine/core_client.py"
	utilsFile       = "vllm/v1/engine/utils.py"
	coordinatorFile = "vllm/v1/engine/coordinator.py"
	eventsFile      = "vllm/distributed/kv_events.py"
	samplingFile    = "vllm/sampling.py"
	loggersFile     = "vllm/v1/metrics/loggers.py"
)

func edited(t *testing.T, edits []edit) memory {
	t.Helper()
	files := tiny(t)
	for _, e := range edits {
		switch {
		case e.replacement == gone:
			delete(files, e.file)
		case e.old == "":
			files[e.file] = e.replacement
		case !strings.Contains(files[e.file], e.old):
			t.Fatalf("%s holds no %q", e.file, e.old)
		default:
			files[e.file] = strings.Replace(files[e.file], e.old, e.replacement, 1)
		}
	}
	return files
}

// TestSameWire: another way of declaring the same wire is the same profile, but for places.
func TestSameWire(t *testing.T) {
	t.Parallel()
	const newRequest = "class EngineCoreRequest(\n    msgspec.Struct,\n    array_like=True,\n    gc=False,\n):\n"
	moved := "import msgspec\nfrom typing import Mapping\nfrom ..engine import RequestId\nimport vllm.sampling\n\n" + newRequest +
		"    request_id: RequestId\n    prompt: list[int] | None\n    sampling: vllm.sampling.Sampling | None = None\n    headers: Mapping[str, str] | None = None\n"
	oldRequest := newRequest + "    request_id: RequestId\n    prompt: Union[None, List[int]]\n    sampling: sp.Sampling | None = None\n    headers: Mapping[str, str] | None = None\n"
	tests := []struct {
		name  string
		edits []edit
	}{
		{"optional for union", []edit{{engineFile, "Union[None, List[int]]", "Optional[list[int]]"}}},
		{"quoted", []edit{{engineFile, "Union[None, List[int]]", `"Union[List['int'], None]"`}}},
		{"over several lines", []edit{{engineFile, "sp.Sampling | None", "(\n        sp.Sampling  # of the request\n        | None\n    )"}}},
		{"another import of a type", []edit{{engineFile, "from torch import Tensor", "import torch"}, {engineFile, "Optional[Tensor]", "torch.Tensor | None"}}},
		{"an alias of a class", []edit{{engineFile, "sp.Sampling | None", "Params | None"}, {engineFile, "PauseMode =", "Params = sp.Sampling\nPauseMode ="}}},
		{"a literal for a constant", []edit{{samplingFile, "= LIMIT", "= 0x1_0"}}},
		{"a member for a value", []edit{{samplingFile, "NEXT = auto()", "NEXT = 11"}}},
		{"a class without keywords that change nothing", []edit{{engineFile, "    gc=False,\n", "    frozen=True,\n    dict=True,\n"}}},
		{"a method more", []edit{{engineFile, "class UtilityOutput", "    @property\n    def finished(self): return bool(self.reason)\n\n\nclass UtilityOutput"}}},
		{"an attribute that is no field", []edit{{engineFile, "class UtilityOutput", "    __slots__ = ()\n    limit = 3\n\nclass UtilityOutput"}}},
		{
			"moved to another module, and imported from there",
			[]edit{
				{engineFile, oldRequest, "from vllm.v1.engine.request import EngineCoreRequest\n"},
				{"vllm/v1/engine/request.py", "", moved},
			},
		},
		{
			"moved, and imported as part of all",
			[]edit{{engineFile, oldRequest, "from .request import *\n"}, {"vllm/v1/engine/request.py", "", moved}},
		},
		{
			"a module that became a folder",
			[]edit{
				{samplingFile, "", gone},
				{"vllm/sampling/__init__.py", "", "from .params import Sampling as Sampling\n"},
				{"vllm/sampling/params.py", "", strings.Replace(tiny(t)[samplingFile], "from .config", "from ..config", 1)},
			},
		},
		{"imported for type checkers only", []edit{{
			engineFile, "from vllm import sampling as sp\n",
			"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm import sampling as sp\nelse:\n    from vllm import config as sp\n",
		}}},
		{"a base that is a plain class", []edit{{engineFile, "    msgspec.Struct,\n    array_like=True,\n    gc", "    Mixin,\n    msgspec.Struct,\n    array_like=True,\n    gc"}, {engineFile, "class Logprobs", "class Mixin:\n    note: str = ''\n\n\nclass Logprobs"}}},
		{"a base by another name", []edit{{engineFile, "class Logprobs", "Base = msgspec.Struct\n\n\nclass Logprobs"}, {engineFile, "class EngineCoreOutput(msgspec.Struct", "class EngineCoreOutput(Base"}}},
		{"a module of the same name beside the folder", []edit{{"vllm/v1/engine.py", "", "x = 1\n"}}},
		{"an answer for names that are not there", []edit{{engineFile, "class Logprobs", "def __getattr__(name):\n    globals()[name] = value = make(name)\n    return value\n\n\nclass Logprobs"}}},
		{"everything imported behind it, and it too", []edit{{engineFile, "class UtilityOutput(", "from vllm.other import *\n\n\nclass UtilityOutput("}, {"vllm/other.py", "", "from vllm.v1.engine import *\nfrom vllm.v1.engine import EngineCoreOutput\n"}}},
		{"a variable of its name in a function", []edit{{engineFile, "class UtilityOutput", "def take(outputs):\n    for EngineCoreOutput in outputs:\n        EngineCoreOutput.__x__ = 1\n        setattr(EngineCoreOutput, 'x', 1)\n\n\nclass UtilityOutput"}}},
		{"the keys in one dictionary", []edit{{utilsFile, `{k: getattr(config, k) for k in ("master_ip", "master_port")}`, `{"master_ip": config.ip, "master_port": config.port}`}}},
		{"the keys under a condition in one expression", []edit{{utilsFile, "    payload = {}\n    if coordinated:\n        payload = {k: getattr(config, k) for k in (\"master_ip\", \"master_port\")}", "    payload = {k: getattr(config, k) for k in [\"master_ip\", \"master_port\"]} if coordinated else {}"}}},
		{"frames in a list", []edit{{eventsFile, `(client_id, b"", self.END_SEQ, b"")`, `[client_id, b'', self.END_SEQ, b""]`}}},
		{"another encoding of its text", []edit{{samplingFile, "from enum", "# A text.\n# -*- coding: latin-1 -*-\nfrom enum"}}},
	}
	releases := []memory{tiny(t)}
	for _, test := range tests {
		releases = append(releases, edited(t, test.edits))
	}
	all := extractAll(t, releases)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := all[1+i]
			if got.err != nil || len(got.gaps) > 0 {
				t.Fatalf("%v, gaps %v", got.err, got.gaps)
			}
			require.NoDiff(t, cmp.Diff(placeless(profileText(t, all[0].profile)), placeless(profileText(t, got.profile))), "-before +after")
		})
	}
}

var places = regexp.MustCompile(`,?"(module":"[^"]*"|at":[0-9]+)`)

// placeless leaves out modules and lines.
func placeless(profile string) string { return places.ReplaceAllString(profile, "") }

// TestNewStructIsTakenIn: nobody lists the structs.
func TestNewStructIsTakenIn(t *testing.T) {
	files := edited(t, []edit{
		{engineFile, "    reason: FinishReason | None = None\n", "    reason: FinishReason | None = None\n    hints: 'dict[str, list[Hint]] | None' = None\n"},
		{engineFile, "import numpy\n", "import numpy\nfrom vllm.hints import Hint\n"},
		{"vllm/hints.py", "", "import abc\nfrom dataclasses import dataclass\n\n@dataclass\nclass Hint(abc.ABC):\n    pass\n\n@dataclass(frozen=True)\nclass Deep(Hint):\n    weight: float = 0.5\n"},
	})
	p, gaps, err := extractFrom(t, files)
	if err != nil || len(gaps) > 0 {
		t.Fatalf("%v, gaps %v", err, gaps)
	}
	if _, taken := p.Structs["Hint"]; taken {
		t.Error("the abstract class is taken for a struct")
	}
	if s := p.Structs["Deep"]; s.Encoding != "map" || len(s.Fields) != 1 || string(s.Fields[0].Default) != "0.5" {
		t.Errorf("got %+v, want the struct that is derived from it", s)
	}
}

// TestGaps: what cannot be read is said, each time with what and where.
func TestGaps(t *testing.T) {
	t.Parallel()
	const output = "class EngineCoreOutput(msgspec.Struct, array_like=True):\n"
	tests := []struct {
		name  string
		edits []edit
		want  []string // part of a gap each; no gap may be without
	}{
		{
			"the module of the wire is gone",
			[]edit{{engineFile, "", gone}},
			[]string{
				"class EngineCoreRequest: there is no module vllm.v1.engine: it was renamed, moved", "class EngineCoreOutputs: ",
				"class EngineCoreReadyResponse: ", "class EngineCoreRequestType: ", "class FinishReason: ", "utility sleep: its type names PauseMode",
				"what is decoded by MsgpackDecoder(EngineCoreRequest)", "what is decoded by MsgpackDecoder(EngineCoreOutputs)",
			},
		},
		{"the client is gone", []edit{{clientFile, "", gone}}, []string{
			"the messages that vllm.v1.engine.core_client sends and receives: there is no module", "utility methods: there is no module",
			"messages UTILITY, coordinator load: there is no module",
		}},
		{"the coordinator is gone", []edit{{coordinatorFile, "", gone}}, []string{"the messages that vllm.v1.engine.coordinator sends", "messages START_DP_WAVE, coordinator counts: there is no module"}},
		{"the metrics are gone", []edit{{loggersFile, "", gone}, {"vllm/v1/spec_decode/metrics.py", "", gone}}, []string{"metrics of the Python server: no metric is declared in vllm.v1.metrics.loggers"}},
		{"metrics with too many variables", []edit{{loggersFile, "        name, documentation = None, None\n", "        l = [" + strings.Repeat("labelnames, ", 2000) + "]\n        self._gauge_cls('vllm:x', '', l)\n"}}, []string{"metrics of the Python server: their declarations have more variables"}},
		{"a root is renamed", []edit{{engineFile, "class EngineCoreReadyResponse", "class EngineCoreReady"}}, []string{
			engineFile + ": class EngineCoreReadyResponse: " + engineFile + " neither declares nor imports it",
		}},
		{"a root within a function", []edit{{engineFile, "class FinishReason(enum.IntEnum):\n    STOP = 0\n    LENGTH = 1\n", "def make():\n    class FinishReason(enum.IntEnum):\n        STOP = 0\n"}}, []string{
			"class FinishReason: ", "EngineCoreOutput.reason: its type names FinishReason",
		}},
		{"no text", []edit{{samplingFile, "", "\xff\xfe"}}, []string{"EngineCoreRequest.sampling: its type names sp.Sampling: vllm/sampling.py cannot be parsed"}},
		{"a module that a type is of is gone", []edit{{samplingFile, "", gone}}, []string{"its type names sp.Sampling: vllm/__init__.py neither declares nor imports it"}},
		{"a class that a field names is gone", []edit{{samplingFile, "class Sampling(Base)", "class SamplingParams(Base)"}}, []string{"its type names sp.Sampling: vllm/sampling.py neither declares nor imports it"}},
		{"a base that is not there", []edit{{samplingFile, "class Sampling(Base)", "class Sampling(Root)"}}, []string{"class Sampling: its base Root cannot be found"}},
		{"a base of elsewhere", []edit{{samplingFile, "class Sampling(Base)", "class Sampling(pydantic.BaseModel)"}, {samplingFile, "import msgspec\n", "import msgspec\nimport pydantic\n"}}, []string{
			"class Sampling: its base class pydantic.BaseModel is not part of vLLM",
		}},
		{"a base that is called", []edit{{samplingFile, "class Sampling(Base)", "class Sampling(make('Base'))"}}, []string{"class Sampling: its header has make('Base'), which is known only when it runs"}},
		{"two bases with fields", []edit{{samplingFile, "class Sampling(Base)", "class Other(msgspec.Struct):\n    x: int\n\nclass Sampling(Base, Other)"}}, []string{"class Sampling: it is derived from Base and Other"}},
		{"bases in a circle", []edit{{samplingFile, "class Base(msgspec.Struct, omit_defaults=True, kw_only=True)", "class Base(Sampling)"}}, []string{"class Base: its bases lead in a circle", "class Sampling: it has no fields"}},
		{"keywords from a dictionary", []edit{{engineFile, output, "class EngineCoreOutput(msgspec.Struct, **options):\n"}}, []string{"class EngineCoreOutput: its header has **options"}},
		{"a keyword that is computed", []edit{{engineFile, output, "class EngineCoreOutput(msgspec.Struct, array_like=FAST):\n"}}, []string{"class EngineCoreOutput: array_like=FAST is known only when it runs"}},
		{"a metaclass", []edit{{engineFile, output, "class EngineCoreOutput(msgspec.Struct, metaclass=Meta):\n"}}, []string{"class EngineCoreOutput: metaclass=Meta is known only when it runs"}},
		{"another name for each field", []edit{{engineFile, output, "class EngineCoreOutput(msgspec.Struct, rename='camel'):\n"}}, []string{"class EngineCoreOutput: a profile cannot express rename='camel'"}},
		{"another key for the tag", []edit{{eventsFile, "tag=True", "tag=True, tag_field='kind'"}}, []string{"class KVCacheEvent: a profile cannot express tag_field='kind'", "class KVCacheEvent"}},
		{"under a condition", []edit{{engineFile, output, "if NOTICE_CALL_ID:\n  class EngineCoreOutput(msgspec.Struct, array_like=True):\n"}}, []string{"class EngineCoreOutput: it is declared under a condition"}},
		{"instead of what cannot be imported", []edit{{engineFile, output, "try:\n  from vllm.fast import EngineCoreOutput\nexcept ImportError:\n  class EngineCoreOutput(msgspec.Struct, array_like=True):\n"}}, []string{"class EngineCoreOutput: it is declared under a condition"}},
		{"twice", []edit{{engineFile, output, "class EngineCoreOutput(msgspec.Struct):\n    x: int\n\n" + output}}, []string{"class EngineCoreOutput: it is declared more than once"}},
		{"imported from two places", []edit{{engineFile, "from vllm import sampling as sp\n", "import sys\nif sys.platform:\n    from vllm.other import sp\nelse:\n    from vllm import sampling as sp\n"}}, []string{
			"EngineCoreRequest.sampling: which Sampling is meant cannot be read: " + engineFile + ":14 imports it from elsewhere than line 12",
		}},
		{"two classes of one name", []edit{{engineFile, "    reason: FinishReason | None", "    extra: other.Logprobs | None = None\n    reason: FinishReason | None"}, {engineFile, "import numpy\n", "import numpy\nfrom vllm import other\n"}, {"vllm/other.py", "", "import msgspec\nclass Logprobs(msgspec.Struct):\n    x: int\n"}}, []string{"class Logprobs: another class of the wire has its name"}},
		{"made by a call", []edit{{samplingFile, "class Sampling(Base):\n    temperature: float = 1.0\n    kind: Kind = Kind.SECOND\n    limit: int = LIMIT\n", "Sampling = msgspec.defstruct('Sampling', [('temperature', float)])\n"}}, []string{"type Sampling: it is made by a call of msgspec.defstruct"}},
		{"made by a call, and named by nothing", []edit{{engineFile, "class UtilityOutput(", "from dataclasses import make_dataclass\nNotice = make_dataclass('Notice', ['x'])\n\nclass UtilityOutput("}}, []string{"type Notice: it is made by a call of make_dataclass"}},
		{"an enum that a call makes", []edit{{engineFile, "class FinishReason(enum.IntEnum):\n    STOP = 0\n    LENGTH = 1\n", "FinishReason = enum.IntEnum('FinishReason', 'STOP LENGTH')\n"}}, []string{"type FinishReason: it is made by a call of enum.IntEnum"}},
		{"a member that is computed", []edit{{engineFile, "LENGTH = 1", "LENGTH = len('x')"}}, []string{"class FinishReason: the value of its member LENGTH is known only when it runs"}},
		{"members by a loop", []edit{{engineFile, "    LENGTH = 1\n", "    for i in range(3):\n        locals()[f'M{i}'] = i\n"}}, []string{"class FinishReason: it declares members under a condition"}},
		{"a field under a condition", []edit{{engineFile, output, output + "    if NOTICE_CALL_ID:\n        extra: int\n"}}, []string{"class EngineCoreOutput: it declares fields under a condition"}},
		{"fields by a loop", []edit{{engineFile, output, output + "    for name in NAMES:\n        __annotations__[name] = int\n"}}, []string{"class EngineCoreOutput: it declares fields under a condition"}},
		{"a call in the body", []edit{{engineFile, output, output + "    exec('extra: int')\n"}}, []string{"class EngineCoreOutput: its body calls exec"}},
		{"a field set afterwards", []edit{{engineFile, "class UtilityOutput(", "EngineCoreOutput.__annotations__['extra'] = int\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration"}},
		{"a field set afterwards by a loop", []edit{{engineFile, "class UtilityOutput(", "for n in NAMES:\n    setattr(EngineCoreOutput, n, None)\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration"}},
		{"fields by an update afterwards", []edit{{engineFile, "class UtilityOutput(", "EngineCoreOutput.__annotations__.update(extra=int)\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: EngineCoreOutput.__annotations__.update(extra=int)"}},
		{"fields by an operator afterwards", []edit{{engineFile, "class UtilityOutput(", "EngineCoreOutput.__annotations__ |= EXTRA\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: EngineCoreOutput.__annotations__ |= EXTRA"}},
		{"deleted", []edit{{engineFile, "class UtilityOutput(", "del EngineCoreOutput\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: del EngineCoreOutput"}},
		{"bound with another name", []edit{{engineFile, "class UtilityOutput(", "EngineCoreOutput, other = make()\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: EngineCoreOutput, other = make()"}},
		{"bound within an expression", []edit{{engineFile, "class UtilityOutput(", "(EngineCoreOutput := other)\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"bound by a loop", []edit{{engineFile, "class UtilityOutput(", "for EngineCoreOutput in others: pass\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"bound by a with statement", []edit{{engineFile, "class UtilityOutput(", "with patched() as EngineCoreOutput: pass\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"bound by a function", []edit{{engineFile, "class UtilityOutput(", "def patch():\n    global EngineCoreOutput\n    EngineCoreOutput = other\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"bound in the names of its module", []edit{{engineFile, "class UtilityOutput(", "globals()['EngineCoreOutput'] = other\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"passed to a function for its effect", []edit{{engineFile, "class UtilityOutput(", "extend(EngineCoreOutput, 'extra')\n\n\nclass UtilityOutput("}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"a constant that is counted on", []edit{{engineFile, "class UtilityOutput(", "NOTICE_CALL_ID -= 1\n\n\nclass UtilityOutput("}}, []string{"constant NOTICE_CALL_ID: it is changed after its declaration: "}},
		{"replaced from another module", []edit{{coreFile, "class DPEngineCoreProc", "import vllm.v1.engine\nvllm.v1.engine.EngineCoreOutput = None\n\n\nclass DPEngineCoreProc"}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"replaced from another module by another name", []edit{{coreFile, "class DPEngineCoreProc", "import vllm.v1.engine as e\ne.EngineCoreOutput = None\n\n\nclass DPEngineCoreProc"}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"replaced from another module by a call", []edit{{coreFile, "class DPEngineCoreProc", "from vllm.v1 import engine\ndef patch():\n    setattr(engine, 'EngineCoreOutput', None)\n\n\nclass DPEngineCoreProc"}}, []string{"class EngineCoreOutput: it is changed after its declaration: "}},
		{"a module that computes its names", []edit{{samplingFile, "class Kind", "globals().update(make())\n\n\nclass Kind"}}, []string{"class Kind: its module sets names that are known only when it runs: globals().update(make())", "class Base: its module sets names that are known only when it runs: globals().update(make())", "class Sampling: its module sets names that are known only when it runs: globals().update(make())"}},
		{"a module that computes one of its names", []edit{{samplingFile, "class Kind", "globals()[NAME] = 1\n\n\nclass Kind"}}, []string{"class Kind: its module sets names that are known only when it runs: globals()[NAME] = 1", "class Base: its module sets names that are known only when it runs: globals()[NAME] = 1", "class Sampling: its module sets names that are known only when it runs: globals()[NAME] = 1"}},
		{"a module that is another", []edit{{samplingFile, "class Kind", "sys.modules[__name__] = make()\n\n\nclass Kind"}}, []string{"class Kind: its module sets names that are known only when it runs: sys.modules", "class Base: its module sets names that are known only when it runs: sys.modules", "class Sampling: its module sets names that are known only when it runs: sys.modules"}},
		{"a module that evaluates text", []edit{{samplingFile, "class Kind", "eval(TEXT)\n\n\nclass Kind"}}, []string{"class Kind: its module runs text as code by eval", "class Base: its module runs text as code by eval", "class Sampling: its module runs text as code by eval"}},
		{"everything imported behind it", []edit{{engineFile, "class UtilityOutput(", "from fast import *\n\n\nclass UtilityOutput("}}, []string{engineFile + ":58 imports everything from fast, which may have another"}},
		{"everything imported behind it has another", []edit{{engineFile, "class UtilityOutput(", "from vllm.other import *\n\n\nclass UtilityOutput("}, {"vllm/other.py", "", "import msgspec\nclass EngineCoreOutput(msgspec.Struct):\n    x: int\n"}}, []string{"which EngineCoreOutput is meant cannot be read: "}},
		{"a base that is imported from two places", []edit{{engineFile, output, strings.Replace(output, "msgspec.Struct", "Base", 1)}, {engineFile, "import numpy\n", "import numpy\ntry:\n    from vllm.other import Base\nexcept ImportError:\n    from msgspec import Struct as Base\n"}}, []string{"class EngineCoreOutput: which base Base is meant cannot be read: "}},
		{"a base under a condition", []edit{{engineFile, output, strings.Replace(output, "msgspec.Struct", "Base", 1)}, {engineFile, "import numpy\n", "import numpy\nif FAST:\n    Base = msgspec.Struct\n"}}, []string{"class EngineCoreOutput: its base Base is not a class of "}},
		{"a field by its annotation alone", []edit{{engineFile, output, output + "    __annotations__['extra'] = int\n"}}, []string{"class EngineCoreOutput: its body sets __annotations__"}},
		{"fields by annotations that are joined", []edit{{engineFile, output, output + "    __annotations__ |= EXTRA\n"}}, []string{"class EngineCoreOutput: its body sets __annotations__"}},
		{"a default that is set again", []edit{{engineFile, "    reason: FinishReason | None = None\n", "    reason: FinishReason | None = None\n    reason = 3\n"}}, []string{"class EngineCoreOutput: its body sets a field otherwise: reason = 3"}},
		{"a default that is set with another", []edit{{engineFile, "    reason: FinishReason | None = None\n", "    reason: FinishReason | None = None\n    reason, other = 3, 4\n"}}, []string{"class EngineCoreOutput: its body sets a field otherwise: reason, other = 3, 4"}},
		{"a default that is taken away", []edit{{engineFile, "    reason: FinishReason | None = None\n", "    reason: FinishReason | None = None\n    del reason\n"}}, []string{"class EngineCoreOutput: it declares fields under a condition"}},
		{"members that are counted otherwise", []edit{{engineFile, "    LENGTH = 1\n", "    LENGTH = enum.auto()\n\n    def _generate_next_value_(name, start, count, last): return 7\n"}}, []string{"class FinishReason: the value of its member LENGTH is known only when it runs"}},
		{"an encoding that is not built in", []edit{{samplingFile, "from enum", "# coding: rot13\nfrom enum"}}, []string{"EngineCoreRequest.sampling: its type names sp.Sampling: vllm/sampling.py cannot be parsed: "}},
		{"a decorator that is not known", []edit{{engineFile, output, "@extended\n" + output}, {engineFile, "import numpy\n", "import numpy\nfrom vllm.v1.serial_utils import encode as extended\n"}}, []string{"class EngineCoreOutput: what its decorator extended does to it cannot be read"}},
		{"a module that runs text", []edit{{samplingFile, "class Kind", "exec(TEXT)\n\n\nclass Kind"}}, []string{"class Kind: its module runs text as code", "class Base: its module runs text as code", "class Sampling: its module runs text as code"}},
		{"a plain class", []edit{{samplingFile, "class Sampling(Base):\n", "class Sampling:\n"}}, []string{"class Sampling: it has no fields that are declared: its form on the wire is not known (EngineCoreRequest.sampling)"}},
		{"a function for a type", []edit{{engineFile, "sp.Sampling | None", "make | None"}, {engineFile, "class Logprobs", "def make(): pass\n\n\nclass Logprobs"}}, []string{"EngineCoreRequest.sampling: make is a function"}},
		{"a value for a type", []edit{{engineFile, "sp.Sampling | None", "NOTICE_CALL_ID | None"}}, []string{"type NOTICE_CALL_ID: it is used as a type, and is the value -1"}},
		{"a type that is computed", []edit{{engineFile, "sp.Sampling | None", "type(sp) | None"}}, []string{"EngineCoreRequest.sampling: its type type(sp) is known only when it runs"}},
		{"a quoted type that is none", []edit{{engineFile, "sp.Sampling | None", "'sp.Sampling |'"}}, []string{`EngineCoreRequest.sampling: its type "sp.Sampling |" is not an expression`}},
		{"syntax of the future", []edit{{samplingFile, "class Sampling(Base):", "optional class Sampling(Base):"}}, []string{"EngineCoreRequest.sampling: its type names sp.Sampling: vllm/sampling.py cannot be parsed: line 20: invalid syntax (Python 3."}},
		{"a utility by a computed name", []edit{{clientFile, `self.call_utility("scale", n)`, `self.call_utility("sc" + n, n)`}}, []string{clientFile + ":31: utility methods: the name of a method is known only when it runs: self.call_utility('sc' + n, n)"}},
		{"a utility that no engine has", []edit{{coreFile, "def scale", "def rescale"}}, []string{clientFile + ":31: utility scale: the frontend calls it, and no engine class"}},
		{"a utility that nothing answers", []edit{{coreFile, "== FAULT_METHOD", "== 'other'"}}, []string{"utility handle_fault: the frontend calls it"}},
		{"no engine class", []edit{{coreFile, "class DPEngineCoreProc(EngineCoreProc)", "class WaveEngineCoreProc(EngineCoreProc)"}}, []string{"class DPEngineCoreProc: it answers utility calls, and cannot be found", "utility scale: "}},
		{"a handshake that is built otherwise", []edit{{coreFile, `{"status": "HELLO", "local": True}`, "hello(local=True)"}}, []string{"message HELLO: it cannot be found in the form that is known"}},
		{"keys from another dictionary", []edit{{coreFile, `{"status": "READY", "local": True}`, `{"status": "READY", **more}`}}, []string{"message READY: a key is known only when it runs: **more"}},
		{"keys by an update", []edit{{coreFile, `ready["hash"] = "x"`, `ready.update(more)`}}, []string{"message READY: its keys are changed by ready.update(more)"}},
		{"a key that is computed", []edit{{coreFile, `ready["hash"] = "x"`, `ready[name] = "x"`}}, []string{"message READY: a key is known only when it runs: ready[name]"}},
		{"settings that are computed", []edit{{utilsFile, `("master_ip", "master_port")`, "NAMES"}}, []string{"message INIT.parallel_config: its keys are known only when it runs: NAMES"}},
		{"frames that are computed", []edit{{eventsFile, `(client_id, b"", seq.to_bytes(8, "big"), payload)`, "frames"}}, []string{"messages of KV events: the frames are known only when it runs", "message KV events replay: it cannot be found"}},
		{"frames in two forms", []edit{{eventsFile, "    def replay", "        self._pub.send_multipart((payload,))\n\n    def replay"}}, []string{"message KV events: it is written in another form than in line 35"}},
		{"frames on another socket", []edit{{eventsFile, "self._pub.send", "self._push.send"}}, []string{"messages of KV events: it sends on a socket that is not known: push", "message KV events: it cannot be found"}},
		{"counts with a hole", []edit{{coordinatorFile, "stats[1]", "stats[2]"}}, []string{"message coordinator counts: nothing sets its element 1", "message coordinator counts: it cannot be found"}},
		{"an extension type that is computed", []edit{{"vllm/v1/serial_utils.py", "Ext(CUSTOM_TYPE_RAW_VIEW", "Ext(code()"}}, []string{"extension types of MessagePack: the type is not a constant", "extension types of MessagePack: nothing calls msgpack.Ext"}},
		{"a constant under a condition", []edit{{engineFile, "NOTICE_CALL_ID = -1\n", "if enum:\n    NOTICE_CALL_ID = -1\n"}}, []string{"constant NOTICE_CALL_ID: it is declared under a condition"}},
	}
	var releases []memory
	for _, test := range tests {
		releases = append(releases, edited(t, test.edits))
	}
	all := extractAll(t, releases)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := all[i]
			require.NoError(t, got.err)
			for _, want := range test.want {
				require.True(t, slices.ContainsFunc(got.gaps, func(g Gap) bool { return strings.Contains(g.String(), want) }), "no gap has %q", want)
			}
			for _, g := range got.gaps {
				require.True(t, slices.ContainsFunc(test.want, func(want string) bool { return strings.Contains(g.String(), want) }), "unexpected gap: %s", g)
			}
		})
	}
}

// TestDefaultThatRuns: its source stands for it, so that another one is a change.
func TestDefaultThatRuns(t *testing.T) {
	p, gaps, err := extractFrom(t, edited(t, []edit{
		{samplingFile, "temperature: float = 1.0", "temperature: float = compute( 'a' )"},
		{samplingFile, "limit: int = LIMIT", "limit: int = msgspec.field(default_factory=lambda: 3, name='most')"},
	}))
	if err != nil || len(gaps) > 0 {
		t.Fatalf("%v, gaps %v", err, gaps)
	}
	fields := p.Structs["Sampling"].Fields
	got := []string{string(fields[0].Default), fields[2].Name, string(fields[2].Default)}
	require.NoDiff(t, cmp.Diff([]string{`"compute('a')"`, "most", `"lambda: 3()"`}, got), "-want +got")
}

func TestVersion(t *testing.T) {
	tests := []struct {
		name, text            string
		version, line, commit string
		wantErr               string
	}{
		{"a development version", "__version__ = version = '0.34.0.dev5+g1a2b3c4d5'\n__commit_id__ = None\n", "0.34.0.dev5+g1a2b3c4d5", "0.34", "", ""},
		{"no commit", "__version__ = '0.33.1'\n", "0.33.1", "0.33", "", ""},
		{"a commit that is none", "__version__ = '0.33.1'\n__commit_id__ = 'master of the world'\n", "0.33.1", "0.33", "", ""},
		{"no version", "x = 1\n", "", "", "", "no vllm/_version.py and no dist-info names the release"},
		{"one that is none", "__version__ = 'dev'\n", "", "", "", `memory: "dev" is not a version of vLLM`},
		{"no Python", "x\x00", "", "", "", "memory: vllm/_version.py: source code string cannot contain null bytes"},
	}
	var releases []memory
	for _, test := range tests {
		releases = append(releases, edited(t, []edit{{"vllm/_version.py", "", test.text}}))
	}
	all := extractAll(t, releases)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := all[i].profile, all[i].err
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			if got, want := p.Version+" "+p.Line+" "+p.Commit, test.version+" "+test.line+" "+test.commit; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// failing is a source that cannot be read after a while.
type failing struct {
	memory
	left *int // reads
}

var errBroken = errors.New("the connection broke")

func (f failing) read(ctx context.Context, paths []string) (map[string][]byte, error) {
	if *f.left--; *f.left < 0 {
		return nil, errBroken
	}
	return f.memory.read(ctx, paths)
}

// TestSourceFails: whenever it does, there is no profile.
func TestSourceFails(t *testing.T) {
	for _, reads := range []int{0, 3} {
		left := reads
		if p, _, err := extractFrom(t, failing{tiny(t), &left}); !errors.Is(err, errBroken) || p != nil {
			t.Errorf("after %d reads: profile %v, error %v, want that of the source", reads, p != nil, err)
		}
	}
}

// TestEveryLineCounts takes each line out of the tiny release in turn: the profile is another one then, or there is a
// gap or an error. The lines of testdata/silent.txt make no difference to the wire.
func TestEveryLineCounts(t *testing.T) {
	t.Parallel()
	files := tiny(t)
	releases, removed := []memory{files}, []string{""}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		lines := strings.SplitAfter(files[name], "\n")
		for i, line := range lines {
			if strings.TrimSpace(line) != "" {
				without := maps.Clone(files)
				without[name] = strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")
				releases, removed = append(releases, without), append(removed, fmt.Sprintf("%s:%d: %s", name, i+1, line))
			}
		}
	}
	all := extractAll(t, releases)
	whole := placeless(profileText(t, all[0].profile))
	var silent strings.Builder
	for i, r := range all[1:] {
		if r.err == nil && len(r.gaps) == 0 && placeless(profileText(t, r.profile)) == whole {
			silent.WriteString(removed[1+i])
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/silent.txt", []byte(silent.String()), 0o644))
	}
	require.NoDiff(t, cmp.Diff(readText(t, "testdata/silent.txt"), silent.String()), "-want +got")
}
