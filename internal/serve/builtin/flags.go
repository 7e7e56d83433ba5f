package builtin

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Flags are those that the frontend itself has: in a command line they follow "--", as those of vllm-rs do.
type Flags struct {
	// Reasoning is the name of a parser of reasoning, "" for none.
	Reasoning string
	// Adapters are loaded before requests are served.
	Adapters []Adapter
	// ToolStrict is --tool-strict-level: auto, function or parameter. By default it is auto for a real engine, and parameter
	// for a player.
	ToolStrict string
	// ScaleOut adds the endpoints of tokens in and tokens out.
	ScaleOut bool
	// TrustTemplates lets requests have chat templates of their own.
	TrustTemplates bool
	// PromptDetails adds the cached tokens to the usage.
	PromptDetails bool
	// LanguageModelOnly refuses images.
	LanguageModelOnly bool
	// MediaPath is the folder of the files that requests may name as images; "" is none.
	MediaPath string
	limits    map[string]int // of the items in a prompt, by their kind
}

// FlagOf is the value of a flag, such as --reasoning-parser, among the flags of a frontend, "" if it is not there.
func FlagOf(args []string, flag string) (value string) {
	for i, arg := range args {
		if v, ok := strings.CutPrefix(arg, flag+"="); ok {
			value = v
		} else if arg == flag && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// ParseFlags reads flags. It refuses those that would have no effect.
func ParseFlags(args []string) (f Flags, err error) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.Reasoning, "reasoning-parser", "", "")
	set.StringVar(&f.ToolStrict, "tool-strict-level", "", "")
	set.BoolVar(&f.ScaleOut, "enable-scale-out", false, "")
	set.BoolVar(&f.PromptDetails, "enable-prompt-tokens-details", false, "")
	set.BoolVar(&f.TrustTemplates, "trust-request-chat-template", false, "")
	set.BoolVar(&f.LanguageModelOnly, "language-model-only", false, "")
	set.StringVar(&f.MediaPath, "allowed-local-media-path", "", "")
	set.Func("limit-mm-per-prompt", "", func(text string) (err error) {
		f.limits, err = parseLimits(text)
		return err
	})
	set.Func("lora-modules", "", func(text string) error {
		a, _, err := ParseAdapter(text)
		if err == nil && (a.Name == "" || a.Path == "") {
			err = errors.New("want a name and a path")
		}
		f.Adapters = append(f.Adapters, a)
		return err
	})
	tools := set.String("tool-call-parser", "hermes", "")
	set.Bool("enable-auto-tool-choice", true, "") // as in vllm-rs, it always is
	err = set.Parse(repeated(args, "lora-modules"))
	if err == nil && set.NArg() > 0 {
		err = fmt.Errorf("%q is not a flag", set.Arg(0))
	}
	if err == nil && f.MediaPath != "" {
		if f.MediaPath, err = filepath.Abs(f.MediaPath); err == nil {
			var info os.FileInfo
			if info, err = os.Stat(f.MediaPath); err == nil && !info.IsDir() {
				err = errors.New(f.MediaPath + " is not a folder")
			}
		}
		if err != nil {
			err = fmt.Errorf("--allowed-local-media-path: %w", err)
		}
	}
	if err == nil && *tools != "hermes" && *tools != "auto" {
		err = fmt.Errorf("--tool-call-parser %s: calls of tools are written and read as hermes does", *tools)
	}
	if err == nil && !slices.Contains([]string{"", strictAuto, strictFunction, strictParameter}, f.ToolStrict) {
		err = fmt.Errorf("--tool-strict-level %s: want auto, function or parameter", f.ToolStrict)
	}
	if err == nil {
		_, err = findReasoning(f.Reasoning)
	}
	if err != nil {
		var names []string
		set.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
		return f, fmt.Errorf("behind --: %w; the builtin frontend has the flags %s there", err, strings.Join(names, ", "))
	}
	return f, nil
}

// repeated gives a flag with several values several times.
func repeated(args []string, name string) (out []string) {
	within := false
	for i, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-"):
			within = arg == "--"+name
		case within && args[i-1] != "--"+name:
			out = append(out, "--"+name)
		}
		out = append(out, arg)
	}
	return out
}

// An Adapter is a LoRA adapter.
type Adapter struct{ Name, Path string }

// ParseAdapter reads a value of --lora-modules: NAME=PATH, or a JSON object with the members name, path and
// base_model_name.
func ParseAdapter(text string) (a Adapter, base string, err error) {
	var one struct {
		Name string `json:"name"`
		Path string `json:"path"`
		Base string `json:"base_model_name"`
	}
	if strings.HasPrefix(text, "{") {
		err = json.Unmarshal([]byte(text), &one)
	} else {
		one.Name, one.Path, _ = strings.Cut(text, "=")
	}
	if err != nil || one.Name+one.Path == "" {
		err = errors.New(`want NAME=PATH, or JSON such as {"name": "lora1", "path": "/path/to/lora1"}`)
	}
	return Adapter{one.Name, one.Path}, one.Base, err
}

// parseLimits reads the JSON of --limit-mm-per-prompt: {"image": 2}, or {"image": {"count": 2}} with other members that
// only engines need.
func parseLimits(text string) (map[string]int, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	limits := map[string]int{}
	for kind, raw := range all {
		var options struct {
			Count *int `json:"count"`
		}
		if kind != "image" && kind != "video" && kind != "audio" {
			return nil, fmt.Errorf("%q: want image, video or audio", kind)
		}
		if json.Unmarshal(raw, &options) != nil && json.Unmarshal(raw, &options.Count) != nil {
			return nil, fmt.Errorf("%s: want a number, or an object with a count", kind)
		}
		if options.Count != nil {
			if *options.Count < 0 {
				return nil, fmt.Errorf("%s: %d is below 0", kind, *options.Count)
			}
			limits[kind] = *options.Count
		}
	}
	return limits, nil
}
