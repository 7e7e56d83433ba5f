package frontendsuite

import (
	"cmp"
	_ "embed"
	"net/http"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
)

const CodeNoCall check.Code = "H014" // an HTTP route does not make its utility call

//go:embed utilities.md
var utilitiesCodes string

var utilities = check.Check{Name: Utilities, Codes: utilitiesCodes, Levels: []check.Level{check.LevelUtilities}, Run: judged((*frontendCase).utilities)}

// adminRoute is an HTTP route that makes a call on the engine. Not every
// frontend has it.
type adminRoute struct {
	method, path string
	body         any
	calls        []string // one of these methods
	// chained routes make sense only after the success of the route before.
	chained bool
}

// adminRoutes are in an order that leaves the engine as it was.
var adminRoutes = []adminRoute{
	{http.MethodPost, "/reset_prefix_cache", nil, []string{"reset_prefix_cache"}, false},
	{http.MethodPost, "/reset_mm_cache", nil, []string{"reset_mm_cache"}, false},
	{http.MethodPost, "/reset_encoder_cache", nil, []string{"reset_encoder_cache"}, false},
	{http.MethodGet, "/is_sleeping", nil, []string{"is_sleeping"}, false},
	{http.MethodPost, "/sleep?level=1", nil, []string{"sleep"}, false},
	{http.MethodPost, "/wake_up", nil, []string{"wake_up"}, false},
	{http.MethodGet, "/is_paused", nil, []string{"is_scheduler_paused"}, false},
	{http.MethodPost, "/pause", nil, []string{"pause_scheduler", "pause_generation"}, false},
	{http.MethodPost, "/release_kv_cache_memory", nil, []string{"release_kv_cache_memory"}, true},
	{http.MethodPost, "/wake_up", nil, []string{"wake_up"}, false},
	{http.MethodPost, "/resume", nil, []string{"resume_scheduler"}, false},
	{http.MethodGet, "/weight_info", nil, []string{"get_weight_version"}, false},
	{http.MethodPost, "/collective_rpc", object{"method": "check_health"}, []string{"collective_rpc"}, false},
	{http.MethodPost, "/start_profile", nil, []string{"profile"}, false},
	{http.MethodPost, "/stop_profile", nil, []string{"profile"}, false},
}

// utilities drives the routes that make utility calls, and judges those that the
// frontend made on its own.
func (k *frontendCase) utilities() {
	own := k.ledger.since(0, isUtility)
	var absent, made []string
	wrong := 0
	for _, route := range adminRoutes {
		if route.chained && len(k.Failures) > wrong {
			continue
		}
		wrong = len(k.Failures)
		if k.admin(route) {
			made = append(made, route.path)
		} else {
			absent = append(absent, route.path)
		}
	}
	if len(absent) > 0 {
		k.AddNote("no route " + strings.Join(slices.Compact(absent), ", "))
	}
	if len(own) == 0 && len(made) == 0 {
		k.Asserted, k.Needs = 0, "if the frontend has administrative routes, start it with VLLM_SERVER_DEV_MODE=1"
		return
	}
	if len(own) > 0 {
		k.AddNote("calls on its own: " + methodsOf(own))
	}
	_, body := k.says(plainly(k.words(3)))
	k.post("a request after these calls", body)
}

func methodsOf(calls []*heard) string {
	var names []string
	for _, h := range calls {
		if !slices.Contains(names, h.call.Method) {
			names = append(names, h.call.Method)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "nothing")
}

// noRoute are the statuses of a frontend that does not have a route, or not as it
// was started.
var noRoute = []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}

// admin makes one HTTP request and checks the call that it makes. It returns
// false for a frontend without the route.
func (k *frontendCase) admin(route adminRoute) bool {
	mark := k.ledger.mark()
	before := k.Asserted
	what := route.method + " " + route.path
	a := k.ask("an administrative route", route.method, route.path, route.body)
	if a == nil || k.lostAt != "" {
		return true
	}
	if slices.Contains(noRoute, a.Status) {
		k.Asserted = before
		return false
	}
	k.Asserted++
	h := k.made(mark, a.Status, calls(route.calls...))
	if h == nil {
		k.fail(check.Failed(CodeNoCall, "%s: status %d, but the frontend did not call %s of the engine: it called %s",
			what, a.Status, strings.Join(route.calls, " or "), methodsOf(k.ledger.since(mark, isUtility))).
			Within(-1, "UtilityCall.method").Compared(strings.Join(route.calls, " or "), "no call"))
		return true
	}
	if a.Status != http.StatusOK {
		k.fail(check.Failed(CodeHTTP, "%s: the engine answered the call of %s, but the status is %d: %s", what, h.call.Method, a.Status, excerpt(string(a.Body))).
			Within(h.number, "UtilityCall."+h.call.Method).Compared(http.StatusOK, a.Status))
	}
	return true
}

// made returns the call that belongs to an answer. Some frontends answer before they
// call; one that answers with an error does not call any more.
func (k *frontendCase) made(mark, status int, match func(*heard) bool) *heard {
	if status == http.StatusOK {
		return k.await(mark, match)
	}
	return first(k.ledger.since(mark, match))
}
