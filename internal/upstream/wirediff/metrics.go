package wirediff

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// metrics compares the metrics of the Python server, if those of both sides were read. They are not messages, so no
// engine, frontend or recorder fails. What reads them may: a dashboard, an alert, an autoscaler.
func (c *comparison) metrics() {
	inA, inB := c.a.Metrics(), c.b.Metrics()
	if inA == nil || inB == nil {
		return
	}
	add := func(kind Kind, name, before, after, reason string, where Where) {
		c.add(Change{Kind: kind, Subject: name, Before: before, After: after, Level: Informational, Where: where, Reason: reason})
	}
	alike := align(declaredOrder(inA), declaredOrder(inB))
	renamed := alike.renames(func(before, after string) bool {
		a, b := inA[before], inB[after]
		return a.Module == b.Module && a.Kind == b.Kind && a.Buckets == b.Buckets && slices.Equal(a.Labels, b.Labels)
	})
	cameBy := map[string]bool{}
	for _, name := range renamed {
		cameBy[name] = true
	}
	eachName(inA, inB, func(name string, m protocol.Metric) {
		if !cameBy[name] {
			reason := fmt.Sprintf("Python servers of %s declare it, and those of %s do not", c.to, c.from)
			add(MetricAdded, name, "", shownMetric(m), reason, c.where(c.b, m.Place, 0))
		}
	}, func(name string, m protocol.Metric) {
		if after := renamed[name]; after != "" {
			reason := fmt.Sprintf("a query of %s finds nothing at Python servers of %s, which have %s in its place", name, c.to, after)
			add(MetricRenamed, after, name, after, reason, c.where(c.b, inB[after].Place, 0))
			return
		}
		reason := "a query of it finds nothing at Python servers of " + c.to
		add(MetricRemoved, name, shownMetric(m), "", reason, c.where(c.a, m.Place, 0))
	}, func(name string, a, b protocol.Metric) {
		where := c.where(c.b, b.Place, 0)
		if a.Kind != b.Kind {
			add(MetricKind, name, a.Kind, b.Kind, "a query of it has to change", where)
		}
		before, after := slices.Sorted(slices.Values(a.Labels)), slices.Sorted(slices.Values(b.Labels))
		if !slices.Equal(before, after) {
			add(MetricLabels, name, strings.Join(a.Labels, ", "), strings.Join(b.Labels, ", "), "a query that names or sums over its labels may have to change", where)
		}
		if a.Buckets != b.Buckets {
			add(MetricBuckets, name, a.Buckets, b.Buckets, "a quantile of it is computed from other bounds, and a query that names a bound may find nothing", where)
		}
	})
}

// declaredOrder returns names in the order in which they are declared.
func declaredOrder(metrics map[string]protocol.Metric) []string {
	return slices.SortedFunc(maps.Keys(metrics), func(a, b string) int {
		x, y := metrics[a], metrics[b]
		return cmp.Or(cmp.Compare(x.Module, y.Module), cmp.Compare(x.At, y.At), cmp.Compare(a, b))
	})
}

// shownMetric is "histogram by model_name, engine".
func shownMetric(m protocol.Metric) string {
	if len(m.Labels) == 0 {
		return m.Kind + " without labels"
	}
	return m.Kind + " by " + strings.Join(m.Labels, ", ")
}
