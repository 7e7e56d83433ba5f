package extract

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/upstream/pyast"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// statModule declares most metrics of the Python server, and the labels that those of every engine have.
const statModule = "vllm.v1.metrics.loggers"

// metricModules declare the metrics that a server exports whatever it is deployed with. Those of KV connectors are not read: each
// connector has its own.
var metricModules = []string{
	statModule, "vllm.v1.spec_decode.metrics", "vllm.v1.metrics.perf", "vllm.parser.metrics", "vllm.entrypoints.serve.dev.sleep.metrics",
	"vllm.entrypoints.rl.online.metrics", "vllm.entrypoints.speech_to_text.realtime.metrics",
}

// metricClasses are what makes a metric: the classes of prometheus_client, and the attributes by which the loggers of vLLM name them.
var metricClasses = map[string]string{
	"Gauge": "gauge", "Counter": "counter", "Histogram": "histogram",
	"_gauge_cls": "gauge", "_counter_cls": "counter", "_histogram_cls": "histogram",
}

// maxVariables bounds how many expressions of a release are looked at for variables. vLLM 0.33 has 273.
const maxVariables = 2000

// mostTexts bounds the labels of a metric, and the metrics of a declaration.
const mostTexts = 500

// A metricReader reads the declarations of metrics, which have names, labels and buckets from variables.
type metricReader struct {
	*extractor
	variables int             // how many expressions were looked at
	followed  map[string]bool // variables that are being followed, by their names
}

// metrics reads the declarations of metrics. They are no messages; but a release without any would be compared with nothing.
func (x *extractor) metrics() {
	metrics := map[string]protocol.Metric{}
	r := &metricReader{extractor: x, followed: map[string]bool{}}
	for _, name := range metricModules {
		m := x.loadWhole(name)
		if m == nil {
			continue // an older release, or its metrics are removed or are declared elsewhere
		}
		for n := range m.tree.Root.All() {
			if n.Kind != "call" {
				continue
			}
			kind := metricClasses[lastName(n.ByField("function"))]
			if kind == "" {
				continue
			}
			if x.ctx.Err() != nil {
				x.err = context.Cause(x.ctx)
				return
			}
			read := protocol.Metric{
				Kind: kind, Labels: r.texts(m, argument(n, "labelnames", 2)), Place: protocol.Place{Module: m.path, At: n.Line},
			}
			if kind == "histogram" {
				read.Buckets = r.buckets(m, argument(n, "buckets", -1))
			}
			for _, name := range r.texts(m, argument(n, "name", 0)) {
				if kind == "counter" { // prometheus_client adds it, once
					name = strings.TrimSuffix(name, "_total") + "_total"
				}
				metrics[name] = read
			}
		}
	}
	x.profile.SetMetrics(metrics)
	const what = "metrics of the Python server"
	switch {
	case x.err != nil:
	case r.variables > maxVariables:
		x.gap(nil, 0, what, "their declarations have more variables than this program follows")
	case len(metrics) == 0:
		x.gap(nil, 0, what, "no metric is declared in "+statModule+": it was renamed, moved, or declares them in another way")
	}
}

// argument returns an argument of a call, by its name or else its position; nil without one.
func argument(call *pyast.Node, name string, position int) *pyast.Node {
	for n := range call.ByField("arguments").NamedChildren() {
		if n.Kind == "keyword_argument" {
			if n.ByField("name").Text() == name {
				return n.ByField("value")
			}
		} else if n.Kind != "comment" {
			if position == 0 {
				return n
			}
			position--
		}
	}
	return nil
}

// texts returns the texts that an expression is: a text or a list of them, or two lists together, each once. What is known only when
// it runs is its source.
func (r *metricReader) texts(m *module, n *pyast.Node) []string {
	texts := []string{} // never nil, as it is when a profile was read
	add := func(more ...string) {
		for _, text := range more {
			if len(texts) < mostTexts && !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	r.follow(m, n, func(value *pyast.Node) {
		switch value.Kind {
		case "binary_operator":
			add(r.texts(m, value.ByField("left"))...)
			add(r.texts(m, value.ByField("right"))...)
		case "list", "tuple":
			for item := range value.NamedChildren() {
				add(r.texts(m, item)...)
			}
		default:
			known, ok := r.evaluate(m, value)
			text, is := known.(string)
			switch {
			case is:
				add(text)
			case !ok || known != nil: // a variable is None until it is set
				add(pyast.Canonical(value))
			}
		}
	})
	return texts
}

// follow calls use with an expression; with a variable's values instead, as assignments of its function or a loop set it. That of a
// parameter with the name labelnames is what the loggers pass. A variable that is made from itself is not followed once more.
func (r *metricReader) follow(m *module, n *pyast.Node, use func(*pyast.Node)) {
	if n == nil {
		return
	}
	name := n.Text()
	if r.variables++; n.Kind != "identifier" && n.Kind != "attribute" || r.followed[name] || r.variables > maxVariables {
		use(n)
		return
	}
	r.followed[name] = true
	defer delete(r.followed, name)
	var found []*pyast.Node
	for function := enclosingFunction(n); function != nil && found == nil; function = enclosingFunction(function) {
		for at := range function.ByField("body").All() {
			switch at.Kind {
			case "assignment":
				if value := at.ByField("right"); value != nil && at.ByField("left").Text() == name {
					found = append(found, value)
				}
			case "for_in_clause", "for_statement":
				found = append(found, r.items(m, at.ByField("left"), at.ByField("right"), name)...)
			}
		}
	}
	if stats := r.loadWhole(statModule); found == nil && name == "labelnames" && stats != nil {
		for at := range stats.tree.Root.All() {
			if at.Kind == "assignment" && at.ByField("left").Text() == name && found == nil {
				found = append(found, at.ByField("right"))
			}
		}
	}
	for _, value := range found {
		use(value)
	}
	if found == nil {
		use(n)
	}
}

// items returns what a loop over lists of tuples sets a variable to.
func (r *metricReader) items(m *module, targets, list *pyast.Node, name string) (found []*pyast.Node) {
	position := slices.IndexFunc(slices.Collect(targets.NamedChildren()), func(n *pyast.Node) bool { return n.Text() == name })
	if position < 0 {
		return nil
	}
	r.follow(m, list, func(value *pyast.Node) {
		for tuple := range value.NamedChildren() {
			if parts := slices.Collect(tuple.NamedChildren()); position < len(parts) {
				found = append(found, parts[position])
			}
		}
	})
	return found
}

// buckets returns the bounds of a histogram: "0.3, 0.5". Those that depend on the configuration are the expression that computes
// them. It is "" for the bounds of prometheus_client.
func (r *metricReader) buckets(m *module, n *pyast.Node) (bounds string) {
	r.follow(m, n, func(value *pyast.Node) {
		numbers, _ := r.evaluate(m, value)
		list, ok := numberList(numbers)
		switch {
		case ok:
			bounds = list
		case value.Kind == "call":
			bounds = r.computedBuckets(m, value)
		default:
			bounds = pyast.Canonical(value)
		}
	})
	return bounds
}

// computedBuckets returns the bounds that a function returns for the name of a family: what a dictionary of its module has under that
// name, else what it returns on the condition that it is this name.
func (r *metricReader) computedBuckets(m *module, call *pyast.Node) string {
	ref := r.resolve(m, call.ByField("function").Text())
	family := argument(call, "family", 0)
	_, err := pyast.Literal(family)
	if ref.def == nil || ref.def.kind != aFunction || err != nil || r.followed[call.Text()] {
		return pyast.Canonical(call)
	}
	r.followed[call.Text()] = true
	defer delete(r.followed, call.Text())
	for n := range ref.module.tree.Root.All() {
		switch {
		case n.Kind == "pair" && n.ByField("key").Text() == family.Text():
			return r.buckets(ref.module, n.ByField("value"))
		case n.Kind == "if_statement" && enclosingFunction(n) == ref.def.node && strings.HasSuffix(n.ByField("condition").Text(), "== "+family.Text()):
			for statement := range n.ByField("consequence").NamedChildren() {
				if statement.Kind == "return_statement" {
					for value := range statement.NamedChildren() {
						return pyast.Canonical(value)
					}
				}
			}
		}
	}
	return pyast.Canonical(call)
}

// numberList writes numbers as profiles have them: 1 and 1.0 are the same bound.
func numberList(value any) (list string, ok bool) {
	var items []any
	switch v := value.(type) {
	case []any:
		items = v
	case pyast.Tuple:
		items = v
	}
	texts := make([]string, len(items))
	for i, item := range items {
		switch v := item.(type) {
		case int64:
			texts[i] = strconv.FormatInt(v, 10)
		case float64:
			texts[i] = strconv.FormatFloat(v, 'f', -1, 64)
		default:
			return "", false
		}
	}
	return strings.Join(texts, ", "), len(items) > 0
}
