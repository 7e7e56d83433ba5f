package deploy_test

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestCheckOthers is about queues that are not as the one of the folder deploy. Memory is not what they lack.
func TestCheckOthers(t *testing.T) {
	tests := []struct {
		name, cohort string
		flavors      []string // the resources of each
		want         string   // of the error
	}{
		{name: "fits", flavors: []string{`{name: cpu, nominalQuota: 24}, {name: nvidia.com/gpu, nominalQuota: 1}`}},
		{name: "only of others", flavors: []string{`{name: cpu, nominalQuota: 24}`}, want: "1 of nvidia.com/gpu, 1 in container engine, of which cluster queue q has none"},
		{name: "not enough", flavors: []string{`{name: cpu, nominalQuota: 1}, {name: nvidia.com/gpu, nominalQuota: 1}`}, want: "of which cluster queue q has 1:"},
		{
			name: "not enough in any flavor", want: "of which cluster queue q has 9:",
			flavors: []string{`{name: cpu, nominalQuota: 9}, {name: nvidia.com/gpu, nominalQuota: 1}`, `{name: cpu, nominalQuota: 8}`},
		},
		{
			name: "lent without end", cohort: "cohortName: all",
			flavors: []string{`{name: cpu, nominalQuota: 0}, {name: nvidia.com/gpu, nominalQuota: 0}`},
		},
		{
			name: "lent", cohort: "cohort: all",
			flavors: []string{`{name: cpu, nominalQuota: 4, borrowingLimit: 20}, {name: nvidia.com/gpu, nominalQuota: 0, borrowingLimit: 1}`},
		},
		{
			name: "not enough lent", cohort: "cohortName: all", want: "of which cluster queue q has 5:",
			flavors: []string{`{name: cpu, nominalQuota: 4, borrowingLimit: 1}, {name: nvidia.com/gpu, nominalQuota: 1}`},
		},
		{
			name: "nobody to borrow from", want: "of which cluster queue q has 4:",
			flavors: []string{`{name: cpu, nominalQuota: 4, borrowingLimit: 20}, {name: nvidia.com/gpu, nominalQuota: 1}`},
		},
	}
	job, err := deploy.NewJob(onGPU(), run)
	require.NoError(t, err)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			flavors := "{resources: [" + strings.Join(test.flavors, "]}, {resources: [") + "]}"
			quota, err := deploy.ReadQuota("it", []byte("kind: ClusterQueue\nmetadata: {name: q}\nspec:\n  "+test.cohort+
				"\n  resourceGroups: [{flavors: ["+flavors+"]}, {flavors: [{resources: [{name: memory, nominalQuota: 96Gi}]}]}]\n"))
			require.NoError(t, err)
			err = deploy.Check([]*deploy.Job{job}, quota)
			require.ErrorText(t, err, test.want)
		})
	}
}
