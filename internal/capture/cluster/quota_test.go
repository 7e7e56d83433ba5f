package cluster

import (
	"slices"
	"strings"
	"testing"
)

// A queue whose quota can never be enough is told of before anything is submitted, and one that nobody may see is not.
func TestRemoteQuota(t *testing.T) {
	queue := func(cohort string) string {
		return `{"kind": "ClusterQueue", "metadata": {"name": "theirs"}, "spec": {` + cohort + `"resourceGroups":
			[{"flavors": [{"resources": [{"name": "cpu", "nominalQuota": "1"}]}]}]}}`
	}
	tests := []struct{ name, quota, want string }{
		{"too small", queue(""), "target 0.33/edge-s1: its pod asks for "},
		{"may borrow", queue(`"cohortName": "all", `), ""},
		{"no quota", `{"kind": "ClusterQueue", "metadata": {"name": "theirs"}}`, "ClusterQueue theirs of https://fake: cluster queue theirs has no quota"},
		{"not to be seen", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRun(t)
			r.cluster.quota, r.Accept, r.Jobs = test.quota, nil, jobsOf(t, r.targets)
			_, err := Capture(t.Context(), r.cluster, r.CaptureOptions, r.targets)
			submitted := slices.Contains(r.cluster.calls, "submit 0.33/edge-s1")
			if submitted != (test.want == "") || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q; submitted: %v", err, test.want, submitted)
			}
		})
	}
}
