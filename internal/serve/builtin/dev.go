package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The endpoints of VLLM_SERVER_DEV_MODE call utility methods of the engines.

// arguments are those of a utility call, as msgpack values. answer makes the answer of the result; nil is an empty one.
type arguments func(r *http.Request) (args [][]byte, answer func(result any) any, err *apiError)

func nothing(answer func(result any) any) arguments {
	return func(*http.Request) ([][]byte, func(any) any, *apiError) { return nil, answer, nil }
}

// states answers with a status, and resultAs with the result.
func states(status string) func(any) any {
	return func(any) any { return object{{"status", status}} }
}

func resultAs(name string) func(any) any {
	return func(result any) any { return object{{name, result}} }
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
		switch method {
		case "reset_mm_cache":
			s.images.mu.Lock()
			s.images.names, s.images.oldest = nil, nil
			s.images.mu.Unlock()
		case "set_weight_version":
			cur := pack.NewCursor(args[0])
			version, _ := cur.StrString()
			s.weights.Store(version)
		}
		if answer == nil {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		return succeed(w, answer(result))
	}
}

// sleepOperations are the names in the metrics of the methods of sleep mode.
var sleepOperations = map[string]string{"sleep": "sleep", "wake_up": "wake", "release_kv_cache_memory": "release_kv_cache_memory"}

// asks makes an endpoint that answers with the bool that a method returns.
func (s *Server) asks(method, key string) handler { return s.calling(method, nothing(resultAs(key))) }

// pauseMethod is the method that pauses: since 0.33 one that also decides what happens to new requests.
func (s *Server) pauseMethod() string {
	if profile, err := protocol.LoadProfile(s.opt.Group.Line()); err == nil {
		if _, has := profile.Utilities["pause_generation"]; has {
			return "pause_generation"
		}
	}
	return "pause_scheduler"
}

func sleepArguments(r *http.Request) ([][]byte, func(any) any, *apiError) {
	level := uint64(1)
	if text := r.URL.Query().Get("level"); text != "" {
		var err error
		if level, err = strconv.ParseUint(text, 10, 32); err != nil {
			return nil, nil, badRequest("", "level %q is not a whole number", text)
		}
		if level > 2 {
			return nil, nil, badRequest("level", "level must be between 0 and 2")
		}
	}
	mode, err := pauseMode(r, "")
	return [][]byte{pack.AppendInt(nil, int64(level)), pack.AppendString(nil, mode)}, func(any) any {
		return object{{"status", "sleeping"}, {"level", level}}
	}, err
}

func pauseMode(r *http.Request, param string) (mode string, err *apiError) {
	if mode = r.URL.Query().Get("mode"); mode == "" {
		return "abort", nil
	}
	if mode != "abort" && mode != "wait" && mode != "keep" {
		err = badRequest(param, "mode is %q: want abort, wait or keep", mode)
	}
	return mode, err
}

func pauseArguments(r *http.Request) ([][]byte, func(any) any, *apiError) {
	mode, err := pauseMode(r, "mode")
	return [][]byte{pack.AppendString(nil, mode), pack.AppendBool(nil, r.URL.Query().Get("clear_cache") != "false")}, states("paused"), err
}

func wakeUpArguments(r *http.Request) ([][]byte, func(any) any, *apiError) {
	tags := r.URL.Query()["tags"]
	b := pack.AppendNil(nil)
	if tags != nil {
		b = pack.AppendArrayHeader(nil, len(tags))
		for _, tag := range tags {
			b = pack.AppendString(b, tag)
		}
	}
	return [][]byte{b}, func(result any) any {
		status := "awake"
		if result == false { // other tags sleep on
			status = "sleeping"
		}
		return object{{"status", status}, {"tags", tags}}
	}, nil
}

func resetArguments(r *http.Request) ([][]byte, func(any) any, *apiError) {
	query := r.URL.Query()
	return [][]byte{
		pack.AppendBool(nil, query.Get("reset_running_requests") == "true"), pack.AppendBool(nil, query.Get("reset_external") == "true"),
	}, resultAs("success"), nil
}

func versionArguments(r *http.Request) ([][]byte, func(any) any, *apiError) {
	var q struct {
		Version *string `json:"new_version"`
	}
	err := readJSON(r, &q)
	if err == nil && q.Version == nil {
		err = missing("new_version")
	}
	if err != nil {
		return nil, nil, err
	}
	return [][]byte{pack.AppendString(nil, *q.Version)}, func(any) any { return object{{"success", true}, {"new_version", *q.Version}} }, nil
}

// ofWorkers makes an endpoint that calls a method of the workers. name is that of the operation in the metrics. member of the
// body is needed, and an argument of that name, unless it is "".
func (s *Server) ofWorkers(method, name, member, missing string) handler {
	return func(w http.ResponseWriter, r *http.Request) *apiError {
		named := pack.AppendMapHeader(nil, 0)
		if member != "" {
			var q map[string]json.RawMessage
			if err := readJSON(r, &q); err != nil {
				return err
			}
			value := q[member]
			if value == nil || string(value) == "null" {
				return badRequest(member, "%s", missing)
			}
			packed, err := packJSON(toJSON(object{{member, value}}))
			if err != nil {
				return badBody("%v", err)
			}
			named = packed
		}
		defer s.metrics.measure(operation{weightOperation, name})()
		if _, err := s.callWorkers(r, method, named); err != nil {
			return s.callFailed(method, "collective_rpc", err)
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}

func (s *Server) callWorkers(r *http.Request, method string, named []byte) (any, error) {
	return s.call(r.Context(), "collective_rpc", pack.AppendString(nil, method), pack.AppendNil(nil), pack.AppendArrayHeader(nil, 0), named)
}

func (s *Server) serveChecker(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Action   *string           `json:"action"`
		Baseline map[string]string `json:"baseline"`
	}
	if err := readJSON(r, &q); err != nil {
		return err
	}
	method := "compute_weight_checksums"
	switch action := or(q.Action, ""); {
	case q.Action == nil:
		return missing("action")
	case action == "compare" && q.Baseline == nil:
		return badRequest("baseline", "action='compare' requires a 'baseline' object")
	case action == "reset":
		method = "reset_weights"
	case action != "checksum" && action != "compare":
		return badBody("action is %q: want checksum, reset or compare", action)
	}
	results, err := s.callWorkers(r, method, pack.AppendMapHeader(nil, 0))
	if err != nil {
		return s.callFailed(method, "collective_rpc", err)
	}
	if method == "reset_weights" {
		return succeed(w, object{{"status", "reset"}})
	}
	var each []map[string]string // of each worker
	if err := json.Unmarshal(toJSON(results), &each); err != nil {
		return s.callFailed(method, "collective_rpc", fmt.Errorf("the checksums cannot be read: %w", err))
	}
	sums := map[string]string{}
	for _, one := range each {
		maps.Copy(sums, one)
	}
	if *q.Action == "checksum" {
		return succeed(w, object{{"checksums", sums}})
	}
	differ := []string{}
	for name, sum := range sums {
		if q.Baseline[name] != sum {
			differ = append(differ, name)
		}
	}
	for name := range q.Baseline {
		if _, has := sums[name]; !has {
			differ = append(differ, name)
		}
	}
	slices.Sort(differ)
	return succeed(w, object{{"match", len(differ) == 0}, {"mismatches", differ}})
}

func (s *Server) serveWorldSize(w http.ResponseWriter, r *http.Request) *apiError {
	size := len(s.balance.open)
	if r.URL.Query().Get("include_dp") == "false" {
		size = 1
	}
	return succeed(w, object{{"world_size", size}})
}

// serveInfo answers with what is configured. The values are those of this frontend: there is no VllmConfig to show.
func (s *Server) serveInfo(w http.ResponseWriter, r *http.Request) *apiError {
	var config any = fmt.Sprintf("model=%q, served_model_name=%q, max_model_len=%d, data_parallel_size=%d", s.opt.Dir, s.opt.Names[0], s.maxModelLen, len(s.balance.open))
	if r.URL.Query().Get("config_format") == "json" {
		config = object{
			{"model_config", object{{"model", s.opt.Dir}, {"max_model_len", s.maxModelLen}}},
			{"parallel_config", object{{"data_parallel_size", len(s.balance.open)}}},
		}
	}
	return succeed(w, object{{"vllm_config", config}, {"vllm_env", object{}}, {"system_env", object{}}})
}

func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request) *apiError {
	var q struct {
		Method  *string                    `json:"method"`
		Timeout *float64                   `json:"timeout"`
		Args    []json.RawMessage          `json:"args"`
		Named   map[string]json.RawMessage `json:"kwargs"`
	}
	err := readJSON(r, &q)
	if err == nil && q.Method == nil {
		err = badRequest("method", "missing in the request: method")
	}
	if err != nil {
		return err
	}
	timeout := pack.AppendNil(nil)
	if q.Timeout != nil {
		timeout = pack.AppendFloat64(nil, *q.Timeout)
	}
	args, err1 := packJSON(toJSON(append([]json.RawMessage{}, q.Args...)))
	named, err2 := packJSON(toJSON(q.Named))
	if q.Named == nil {
		named = pack.AppendMapHeader(nil, 0)
	}
	if err := errors.Join(err1, err2); err != nil {
		return badBody("%v", err)
	}
	return s.calling("collective_rpc", func(*http.Request) ([][]byte, func(any) any, *apiError) {
		return [][]byte{pack.AppendString(nil, *q.Method), timeout, args, named}, resultAs("results"), nil
	})(w, r)
}
