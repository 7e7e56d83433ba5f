package builtin

import (
	"net/http"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A handler answers a request, or returns the error that is the answer.
type handler func(http.ResponseWriter, *http.Request) *apiError

// A route is an endpoint: where it is, and which servers have it.
type route struct {
	path, method string
	of           group
	serve        handler
}

// A group of endpoints is there under a condition.
type group uint8

const (
	always    group = iota
	generates       // engines that generate
	scalesOut       // likewise; without --enable-scale-out, they are refused
	embeds          // engines that embed
	loadsLoRA
	developers // VLLM_SERVER_DEV_MODE
)

// routes are all endpoints. Each has a file, or shares one with those that are like it.
func (s *Server) allRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{"/health", get, always, s.serveHealth},
		{"/ping", get, always, s.serveHealth},
		{"/load", get, always, s.serveLoad},
		{"/version", get, always, s.serveVersion},
		{"/metrics", get, always, s.serveMetrics},
		{"/kv_event_sources", get, always, serveEventSources},
		{"/v1/models", get, always, s.serveModels},
		{"/tokenize", post, always, s.serveTokenize},
		{"/detokenize", post, always, s.serveDetokenize},

		{"/v1/completions", post, generates, s.serveCompletions},
		{"/v1/chat/completions", post, generates, s.serveChat},
		{"/v1/responses", post, generates, s.serveResponses},
		{oneResponse, get, generates, s.serveStored},
		{oneResponse + cancelResponse, post, generates, s.serveStored},
		{"/v1/messages", post, generates, s.serveMessages},
		{"/v1/messages/count_tokens", post, generates, s.serveCountTokens},
		{"/v1/embeddings", post, embeds, s.serveEmbeddings},

		{"/inference/v1/generate", post, scalesOut, s.serveGenerate},
		{"/inference/v1/abort_requests", post, scalesOut, s.serveAbort(true)},
		{"/v1/chat/completions/render", post, scalesOut, s.serveRenderChat},
		{"/v1/completions/render", post, scalesOut, s.serveRenderCompletions},
		{"/v1/messages/render", post, scalesOut, s.serveRenderMessages},
		{"/v1/responses/render", post, scalesOut, s.serveRenderResponses},

		// Of the Python frontend alone. vllm-rs answers with status 501 too.
		{"/v1/chat/completions/derender", post, scalesOut, unsupported},
		{"/v1/completions/derender", post, scalesOut, unsupported},
		{"/v1/chat/completions/batch", post, generates, unsupported},
		{"/v1/decisions", post, generates, unsupported},
		{"/v1/systemone", post, generates, unsupported},
		{"/scale_elastic_ep", post, generates, unsupported},
		{"/is_scaling_elastic_ep", post, generates, unsupported},

		{"/v1/load_lora_adapter", post, loadsLoRA, s.serveLoadLoRA},
		{"/v1/unload_lora_adapter", post, loadsLoRA, s.serveUnloadLoRA},

		{"/sleep", post, developers, s.calling("sleep", sleepArguments)},
		{"/wake_up", post, developers, s.calling("wake_up", wakeUpArguments)},
		{"/release_kv_cache_memory", post, developers, s.calling("release_kv_cache_memory", nothing(states("kv_cache_released")))},
		{"/is_sleeping", get, developers, s.asks("is_sleeping", "is_sleeping")},
		{"/pause", post, developers, s.calling(s.pauseMethod(), pauseArguments)},
		{"/resume", post, developers, s.calling("resume_scheduler", nothing(states("resumed")))},
		{"/is_paused", get, developers, s.asks("is_scheduler_paused", "is_paused")},
		{"/reset_prefix_cache", post, developers, s.calling("reset_prefix_cache", resetArguments)},
		{"/reset_mm_cache", post, developers, s.calling("reset_mm_cache", nothing(nil))},
		{"/reset_encoder_cache", post, developers, s.calling("reset_encoder_cache", nothing(nil))},
		{"/get_world_size", get, developers, s.serveWorldSize},
		{"/server_info", get, developers, s.serveInfo},
		{"/collective_rpc", post, developers, s.serveRPC},
		{"/weight_info", get, developers, s.asks("get_weight_version", "weight_version")},
		{"/update_weight_version", post, developers, s.calling("set_weight_version", versionArguments)},
		{"/weight_checker", post, developers, s.serveChecker},
		{"/init_weight_transfer_engine", post, developers, s.ofWorkers("init_weight_transfer_engine", "init", "init_info", "'init_info' must be a JSON object")},
		{"/shutdown_weight_transfer_engine", post, developers, s.ofWorkers("shutdown_weight_transfer_engine", "shutdown", "", "")},
		{"/start_weight_update", post, developers, s.ofWorkers("start_weight_update", "start", "", "")},
		{"/start_draft_weight_update", post, developers, s.ofWorkers("start_draft_weight_update", "start_draft", "", "")},
		{"/update_weights", post, developers, s.ofWorkers("update_weights", "update", "update_info", "'update_info' must be a JSON object or a list of per-worker JSON objects")},
		{"/finish_weight_update", post, developers, s.ofWorkers("finish_weight_update", "finish", "", "")},
		{"/abort_requests", post, developers, s.serveAbort(false)},
	}
}

// route finds out which endpoints this server has.
func (s *Server) route() {
	scaling := s.opt.Flags.ScaleOut || slices.Contains(s.opt.Env, "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1")
	has := map[group]bool{
		always: true, generates: s.generates(), scalesOut: s.generates(), embeds: slices.Contains(s.opt.Tasks, "embed"),
		loadsLoRA: s.opt.LoRA || slices.Contains(s.opt.Env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"), developers: slices.Contains(s.opt.Env, "VLLM_SERVER_DEV_MODE=1"),
	}
	s.open.all = has[scalesOut] && scaling || has[developers]
	s.routes = map[string]route{}
	for _, r := range s.allRoutes() {
		if r.of == scalesOut && !scaling {
			r.serve = noScaleOut
		}
		if has[r.of] {
			s.routes[r.path] = r
		}
	}
	if profile, err := protocol.LoadProfile(s.opt.Group.Line()); err == nil {
		// Engines of older lines do not know these calls.
		for path, method := range map[string]string{"/release_kv_cache_memory": "release_kv_cache_memory", "/weight_info": "get_weight_version"} {
			if _, known := profile.Utilities[method]; !known {
				delete(s.routes, path)
			}
		}
	}
}

// find returns the endpoint at a path. Only those of stored responses have a variable part.
func (s *Server) find(path string) (found route, known bool) {
	if found, known = s.routes[path]; known {
		return found, true
	}
	id, stored := strings.CutPrefix(path, responsesPath)
	id, cancel := strings.CutSuffix(id, cancelResponse)
	switch {
	case !stored || id == "" || strings.Contains(id, "/"):
		return found, false
	case cancel:
		found, known = s.routes[oneResponse+cancelResponse]
	default:
		found, known = s.routes[oneResponse]
	}
	return found, known
}

func (r route) allow() string {
	if r.method == http.MethodGet {
		return "GET,HEAD"
	}
	return r.method
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, known := s.find(r.URL.Path)
	if r.Header["Origin"] != nil {
		w.Header()["Vary"] = []string{"origin"} // no other origin is allowed
	}
	switch {
	case !known && isCall(r):
		s.rpc.server.ServeHTTP(w, r)
	case r.Method == http.MethodOptions:
		if known {
			w.Header()["Allow"] = []string{found.allow()}
		}
		if r.Header["Origin"] != nil {
			w.Header()["Access-Control-Allow-Methods"] = []string{"DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT"}
			w.Header()["Access-Control-Max-Age"] = []string{"600"}
		}
		w.WriteHeader(http.StatusOK)
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == found.method || r.Method == http.MethodHead && found.method == http.MethodGet, r.Method == http.MethodPost && r.URL.Path == "/ping":
		if found.method == http.MethodPost {
			s.load.Add(1)
			defer s.load.Add(-1)
		}
		switch err := found.serve(w, r); err {
		case nil:
		case errLeft:
			panic(http.ErrAbortHandler)
		default:
			writeJSON(w, err.status, err.body())
		}
	default:
		w.Header()["Allow"] = []string{found.allow()}
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// noScaleOut refuses requests where these endpoints are not enabled.
func noScaleOut(http.ResponseWriter, *http.Request) *apiError {
	return &apiError{
		status: http.StatusForbidden, kind: "PermissionDeniedError",
		message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
	}
}

// unsupported answers where the Python frontend has an endpoint that this one does not have.
func unsupported(_ http.ResponseWriter, r *http.Request) *apiError {
	return &apiError{status: http.StatusNotImplemented, message: r.Method + " " + r.URL.Path + " is not supported by the builtin frontend. Use --frontend python."}
}
