package builtin

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Flags are those that the frontend itself has: in a command line they follow "--", as those of vllm-rs do.
type Flags struct {
	// Reasoning is the name of a parser of reasoning, "" for none.
	Reasoning string
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
		err = fmt.Errorf("%q is no flag", set.Arg(0))
	}
	if err == nil && f.MediaPath != "" {
		if f.MediaPath, err = filepath.Abs(f.MediaPath); err == nil {
			var info os.FileInfo
			if info, err = os.Stat(f.MediaPath); err == nil && !info.IsDir() {
				err = errors.New(f.MediaPath + " is no folder")
			}
		}
		if err != nil {
			err = fmt.Errorf("--allowed-local-media-path: %w", err)
		}
	}
	if err == nil && *tools != "hermes" && *tools != "auto" {
		err = fmt.Errorf("--tool-call-parser %s: calls of tools are written and read as hermes does", *tools)
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

// parseLimits reads the JSON of --limit-mm-per-prompt: {"image": 2}, or {"image": {"count": 2}} with other members that only engines
// need.
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

// scaleOutRoutes are the endpoints of --enable-scale-out. Without it they are refused.
func (s *Server) scaleOutRoutes() map[string]route {
	post := http.MethodPost
	routes := map[string]route{
		"/inference/v1/generate":        {post, s.serveGenerate},
		"/inference/v1/abort_requests":  {post, s.serveAbortByID},
		"/v1/chat/completions/render":   {post, s.serveRenderChat},
		"/v1/completions/render":        {post, s.serveRenderCompletions},
		"/v1/messages/render":           {post, s.serveRenderMessages},
		"/v1/responses/render":          {post, s.serveRenderResponses},
		"/v1/chat/completions/derender": {post, unsupported},
		"/v1/completions/derender":      {post, unsupported},
	}
	if s.opt.Flags.ScaleOut || slices.Contains(s.opt.Env, "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1") {
		s.open.all = true
		return routes
	}
	for path := range routes {
		routes[path] = route{post, noScaleOut}
	}
	return routes
}

// onlyPython are other endpoints of the Python frontend that vllm-rs knows, and answers with status 501 too.
var onlyPython = []string{"/v1/chat/completions/batch", "/v1/decisions", "/v1/systemone", "/scale_elastic_ep", "/is_scaling_elastic_ep"}

// unsupported answers where the Python frontend has an endpoint that this one does not have.
func unsupported(_ http.ResponseWriter, r *http.Request) *apiError {
	return &apiError{status: http.StatusNotImplemented, message: r.Method + " " + r.URL.Path + " is not supported by the builtin frontend. Use --frontend python."}
}

// devRoutes are the endpoints of VLLM_SERVER_DEV_MODE.
func (s *Server) devRoutes() map[string]route {
	post, get := http.MethodPost, http.MethodGet
	return map[string]route{
		"/sleep":                           {post, s.calling("sleep", sleepArguments)},
		"/wake_up":                         {post, s.calling("wake_up", wakeUpArguments)},
		"/release_kv_cache_memory":         {post, s.calling("release_kv_cache_memory", nothing(`{"status":"kv_cache_released"}`))},
		"/is_sleeping":                     {get, s.asks("is_sleeping", "is_sleeping")},
		"/pause":                           {post, s.calling(s.pauseMethod(), pauseArguments)},
		"/resume":                          {post, s.calling("resume_scheduler", nothing(`{"status":"resumed"}`))},
		"/is_paused":                       {get, s.asks("is_scheduler_paused", "is_paused")},
		"/reset_prefix_cache":              {post, s.calling("reset_prefix_cache", resetArguments)},
		"/reset_mm_cache":                  {post, s.calling("reset_mm_cache", nothing(""))},
		"/reset_encoder_cache":             {post, s.calling("reset_encoder_cache", nothing(""))},
		"/get_world_size":                  {get, s.serveWorldSize},
		"/server_info":                     {get, s.serveInfo},
		"/collective_rpc":                  {post, s.serveRPC},
		"/weight_info":                     {get, s.calling("get_weight_version", nothing(`{"weight_version":%s}`))},
		"/update_weight_version":           {post, s.calling("set_weight_version", versionArguments)},
		"/weight_checker":                  {post, s.serveChecker},
		"/init_weight_transfer_engine":     {post, s.ofWorkers("init_weight_transfer_engine", "init", "init_info", "'init_info' must be a JSON object")},
		"/shutdown_weight_transfer_engine": {post, s.ofWorkers("shutdown_weight_transfer_engine", "shutdown", "", "")},
		"/start_weight_update":             {post, s.ofWorkers("start_weight_update", "start", "", "")},
		"/start_draft_weight_update":       {post, s.ofWorkers("start_draft_weight_update", "start_draft", "", "")},
		"/update_weights":                  {post, s.ofWorkers("update_weights", "update", "update_info", "'update_info' must be a JSON object or a list of per-worker JSON objects")},
		"/finish_weight_update":            {post, s.ofWorkers("finish_weight_update", "finish", "", "")},
		"/abort_requests":                  {post, s.serveAbort},
	}
}

// arguments are those of a utility call, as msgpack values, and answer what the client gets: "" is an empty answer, and %s in it stands
// for the result of the call as JSON.
type arguments func(r *http.Request) (args [][]byte, answer string, err *apiError)

func nothing(answer string) arguments {
	return func(*http.Request) ([][]byte, string, *apiError) { return nil, answer, nil }
}

// calling makes an endpoint that calls a utility method of the engines.
func (s *Server) calling(method string, arguments arguments) handler {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		args, answer, wrong := arguments(r)
		if wrong != nil {
			return wrong
		}
		if name := sleepOperations[method]; name != "" {
			defer s.metrics.measure(operation{sleepOperation, name})()
		}
		result, err := s.call(r.Context(), method, args...)
		if err != nil {
			return s.callFailed(method, method, err)
		}
		if method == "reset_mm_cache" {
			s.images.clear()
		}
		if method == "set_weight_version" {
			cur := pack.NewCursor(args[0])
			version, _ := cur.StrString()
			s.weights.Store(version)
		}
		if answer == "" {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		if strings.Contains(answer, "%s") {
			text, _ := json.Marshal(result)
			if raw, packed := result.([]byte); packed {
				text = appendTransfer(nil, raw)
			}
			if method == "wake_up" {
				text = []byte(`"awake"`)
				if result == false { // other tags sleep on
					text = []byte(`"sleeping"`)
				}
			}
			answer = strings.Replace(answer, "%s", string(text), 1)
		}
		return succeed(w, []byte(answer))
	}
}

// sleepOperations are the names in the metrics of the methods of sleep mode.
var sleepOperations = map[string]string{"sleep": "sleep", "wake_up": "wake", "release_kv_cache_memory": "release_kv_cache_memory"}

// asks makes an endpoint that answers with the bool that a method returns.
func (s *Server) asks(method, key string) handler {
	return s.calling(method, nothing(`{"`+key+`":%s}`))
}

// pauseMethod is the method that pauses: since 0.33 one that also decides what happens to new requests.
func (s *Server) pauseMethod() string {
	if profile, err := protocol.LoadProfile(s.opt.Group.Line()); err == nil {
		if _, has := profile.Utilities["pause_generation"]; has {
			return "pause_generation"
		}
	}
	return "pause_scheduler"
}

func sleepArguments(r *http.Request) ([][]byte, string, *apiError) {
	level := 1
	if text := r.URL.Query().Get("level"); text != "" {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n < 0:
			return nil, "", badRequest("", "Failed to deserialize query string: level: invalid digit found in string")
		case n > 2:
			return nil, "", badRequest("level", "level must be between 0 and 2")
		}
		level = n
	}
	mode, err := pauseMode(r, "")
	return [][]byte{pack.AppendInt(nil, int64(level)), pack.AppendString(nil, mode)}, fmt.Sprintf(`{"status":"sleeping","level":%d}`, level), err
}

func pauseMode(r *http.Request, param string) (mode string, err *apiError) {
	if mode = r.URL.Query().Get("mode"); mode == "" {
		return "abort", nil
	}
	if mode != "abort" && mode != "wait" && mode != "keep" {
		err = badRequest(param, "Failed to deserialize query string: mode: invalid pause mode `%s`; expected one of: abort, wait, keep", mode)
	}
	return mode, err
}

func pauseArguments(r *http.Request) ([][]byte, string, *apiError) {
	mode, err := pauseMode(r, "mode")
	return [][]byte{pack.AppendString(nil, mode), pack.AppendBool(nil, r.URL.Query().Get("clear_cache") != "false")}, `{"status":"paused"}`, err
}

func wakeUpArguments(r *http.Request) ([][]byte, string, *apiError) {
	tags := r.URL.Query()["tags"]
	if tags == nil {
		return [][]byte{pack.AppendNil(nil)}, `{"status":%s,"tags":null}`, nil
	}
	b, shown := pack.AppendArrayHeader(nil, len(tags)), []byte(`{"status":%s,"tags":[`)
	for i, tag := range tags {
		b = pack.AppendString(b, tag)
		shown = comma(shown, i)
		shown = appendString(shown, tag)
	}
	return [][]byte{b}, string(append(shown, "]}"...)), nil
}

func resetArguments(r *http.Request) ([][]byte, string, *apiError) {
	query := r.URL.Query()
	return [][]byte{
		pack.AppendBool(nil, query.Get("reset_running_requests") == "true"), pack.AppendBool(nil, query.Get("reset_external") == "true"),
	}, `{"success":%s}`, nil
}

func versionArguments(r *http.Request) ([][]byte, string, *apiError) {
	var q struct {
		Version *string `json:"new_version"`
	}
	end, err := readJSON(r, &q)
	if err == nil && q.Version == nil {
		err = missingField(end, "new_version")
	}
	if err != nil {
		return nil, "", err
	}
	return [][]byte{pack.AppendString(nil, *q.Version)}, string(append(appendString([]byte(`{"success":true,"new_version":`), *q.Version), '}')), nil
}

// ofWorkers makes an endpoint that calls a method of the workers, which have no weights. name is that of the operation in the metrics.
// member of the body is needed unless it is "".
func (s *Server) ofWorkers(method, name, member, missing string) handler {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		var q map[string]any
		if member != "" {
			if _, err := readJSON(r, &q); err != nil {
				return err
			}
			if q[member] == nil {
				return badRequest(member, "%s", missing)
			}
		}
		defer s.metrics.measure(operation{weightOperation, name})()
		if _, err := s.callWorkers(r, method); err != nil {
			return s.callFailed(method, "collective_rpc", err)
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}

func (s *Server) callWorkers(r *http.Request, method string) (any, error) {
	return s.call(r.Context(), "collective_rpc", pack.AppendString(nil, method), pack.AppendNil(nil), pack.AppendArrayHeader(nil, 0), pack.AppendMapHeader(nil, 0))
}

func (s *Server) serveChecker(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Action   *string           `json:"action"`
		Baseline map[string]string `json:"baseline"`
	}
	end, wrong := readJSON(r, &q)
	switch {
	case wrong != nil:
	case q.Action == nil:
		wrong = missingField(end, "action")
	case *q.Action == "compare" && q.Baseline == nil:
		wrong = badRequest("baseline", "action='compare' requires a 'baseline' object")
	case *q.Action != "checksum" && *q.Action != "reset" && *q.Action != "compare":
		wrong = badType("action: unknown variant `%s`, expected one of `checksum`, `reset`, `compare`", *q.Action)
	}
	if wrong == nil {
		method := map[bool]string{true: "reset_weights", false: "compute_weight_checksums"}[*q.Action == "reset"]
		if _, err := s.callWorkers(r, method); err != nil {
			wrong = s.callFailed(method, "collective_rpc", err)
		}
	}
	if wrong != nil {
		return wrong
	}
	return succeed(w, []byte(`{"checksums":{}}`))
}

func (s *Server) serveWorldSize(w http.ResponseWriter, r *http.Request) *apiError {
	size := len(s.balance.open)
	if r.URL.Query().Get("include_dp") == "false" {
		size = 1
	}
	return succeed(w, append(appendInt([]byte(`{"world_size":`), size), '}'))
}

// serveInfo tells what is configured. The values are those of this frontend: there is no VllmConfig to show.
func (s *Server) serveInfo(w http.ResponseWriter, r *http.Request) *apiError {
	b := []byte(`{"vllm_config":`)
	config := fmt.Sprintf("model=%q, served_model_name=%q, max_model_len=%d, data_parallel_size=%d", s.opt.Dir, s.opt.Names[0], s.maxModelLen, len(s.balance.open))
	if r.URL.Query().Get("config_format") == "json" {
		b = appendString(append(b, `{"model_config":{"model":`...), s.opt.Dir)
		b = appendInt(append(b, `,"max_model_len":`...), s.maxModelLen)
		b = append(appendInt(append(b, `},"parallel_config":{"data_parallel_size":`...), len(s.balance.open)), "}}"...)
	} else {
		b = appendString(b, config)
	}
	return succeed(w, append(b, `,"vllm_env":{},"system_env":{}}`...))
}

func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Method  *string        `json:"method"`
		Timeout *float64       `json:"timeout"`
		Args    []any          `json:"args"`
		Named   map[string]any `json:"kwargs"`
	}
	_, wrong := readJSON(r, &q)
	if wrong == nil && q.Method == nil {
		wrong = badRequest("method", "Missing 'method' in request body")
	}
	if wrong != nil {
		return wrong
	}
	timeout := pack.AppendNil(nil)
	if q.Timeout != nil {
		timeout = pack.AppendFloat64(nil, *q.Timeout)
	}
	args := pack.AppendArrayHeader(nil, len(q.Args))
	for _, a := range q.Args {
		args = appendValue(args, a)
	}
	named := pack.AppendMapHeader(nil, 0)
	if q.Named != nil {
		named = appendValue(nil, q.Named)
	}
	return s.calling("collective_rpc", func(*http.Request) ([][]byte, string, *apiError) {
		return [][]byte{pack.AppendString(nil, *q.Method), timeout, args, named}, `{"results":%s}`, nil
	})(w, r)
}

// running are the answers that are being generated, by the ids that clients know: that of the request, and that of the answer where it has
// one of its own. Those of gRPC are always noted, and those of HTTP if all is set: if there are endpoints that abort them.
type running struct {
	all  bool
	mu   sync.Mutex
	byID map[string][]*sequence
}

func (o *running) add(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range g.all {
		o.byID[g.id] = append(o.byID[g.id], q)
		if q.external != g.id {
			o.byID[q.external] = append(o.byID[q.external], q)
		}
	}
}

func (o *running) remove(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range g.all {
		for _, id := range []string{g.id, q.external} {
			left := slices.DeleteFunc(o.byID[id], func(other *sequence) bool { return other == q })
			if o.byID[id] = left; len(left) == 0 {
				delete(o.byID, id)
			}
		}
	}
}

// abort ends requests, all of them if no id is given.
func (o *running) abort(ids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(ids) == 0 {
		ids = slices.Collect(maps.Keys(o.byID))
	}
	ended := map[*sequence]bool{}
	for _, id := range ids {
		for _, q := range o.byID[id] {
			if !ended[q] {
				ended[q] = true
				q.abort()
			}
		}
	}
}

// abort ends an answer while its HTTP request goes on: the client gets what there is.
func (q *sequence) abort() {
	group := q.gen.server.opt.Group
	group.Abort(q.engine, q.id)
	// The reply comes from the goroutine of the engine, behind all outputs that were on their way: what is counted is what is sent.
	group.Call(q.engine, player.UtilityCall{Method: "is_sleeping", Reply: func(any, error) {
		q.Receive(&player.EngineOutput{Finish: protocol.FinishAbort}, 0)
	}})
}

// serveAbort ends requests, all of them without ids.
func (s *Server) serveAbort(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		IDs []string `json:"request_ids"`
	}
	if _, err := readJSON(r, &q); err != nil {
		return err
	}
	s.open.abort(q.IDs...)
	w.WriteHeader(http.StatusOK)
	return nil
}

// serveAbortByID ends requests, and answers without a body.
func (s *Server) serveAbortByID(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		IDs []string `json:"request_ids"`
	}
	_, err := readJSON(r, &q)
	if err == nil && q.IDs == nil {
		err = badRequest("request_ids", "Missing 'request_ids' in request body")
	}
	if err != nil {
		return err
	}
	if len(q.IDs) > 0 {
		s.open.abort(q.IDs...)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
