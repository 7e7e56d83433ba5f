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

// ReasoningParser is the value of --reasoning-parser among the flags of a frontend, "" if it is not there.
func ReasoningParser(args []string) (name string) {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--reasoning-parser="); ok {
			name = value
		} else if arg == "--reasoning-parser" && i+1 < len(args) {
			name = args[i+1]
		}
	}
	return name
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
	tools := set.String("tool-call-parser", "hermes", "")
	set.Bool("enable-auto-tool-choice", true, "") // as in vllm-rs, it always is
	err = set.Parse(args)
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
