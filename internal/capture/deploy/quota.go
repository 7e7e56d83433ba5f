package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// A Quota is the most that a cluster queue can ever give to one pod, of each resource. A pod has all of a resource of one
// flavor.
type Quota struct {
	Queue string // name of the cluster queue
	Has   ResourceList
	// Unbounded are those of which there is more in the cohort of the queue, how much is not known here.
	Unbounded map[string]bool
}

const clusterQueueKind = "ClusterQueue"

// clusterQueue is the part of Kueue's ClusterQueue that says how much there is.
type clusterQueue struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		CohortName, Cohort string // the latter until v1beta1
		ResourceGroups     []struct {
			Flavors []struct {
				Resources []struct {
					Name           string
					NominalQuota   resource.Quantity
					BorrowingLimit *resource.Quantity
				}
			}
		}
	}
}

// ReadQuota reads a ClusterQueue of Kueue, as YAML or JSON. The file is named in errors.
func ReadQuota(file string, text []byte) (Quota, error) {
	var q clusterQueue
	if err := yaml.Unmarshal(text, &q); err != nil {
		return Quota{}, fmt.Errorf("%s: read a ClusterQueue: %w", file, err)
	}
	if q.Kind != clusterQueueKind || q.Metadata.Name == "" {
		return Quota{}, fmt.Errorf("%s: is a %q called %q: want a ClusterQueue", file, q.Kind, q.Metadata.Name)
	}
	inCohort := q.Spec.CohortName != "" || q.Spec.Cohort != ""
	quota := Quota{Queue: q.Metadata.Name, Has: ResourceList{}, Unbounded: map[string]bool{}}
	for _, group := range q.Spec.ResourceGroups {
		for _, flavor := range group.Flavors {
			for _, r := range flavor.Resources {
				most := r.NominalQuota
				if inCohort && r.BorrowingLimit != nil {
					most.Add(*r.BorrowingLimit)
				}
				raise(quota.Has, ResourceList{r.Name: most})
				if inCohort && r.BorrowingLimit == nil {
					quota.Unbounded[r.Name] = true
				}
			}
		}
	}
	if len(quota.Has) == 0 {
		return Quota{}, fmt.Errorf("%s: cluster queue %s has no quota of anything", file, quota.Queue)
	}
	return quota, nil
}

// Check demands that the queue can admit each Job by itself: one that asks for more than there ever is would wait
// for good. All that is wrong is reported at once.
func Check(jobs []*Job, quota Quota) error {
	var wrong []error
	for _, job := range jobs {
		pod, err := job.pod()
		if err != nil {
			return err
		}
		asked := podNeeds(pod)
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			q := asked[name]
			has, covered := quota.Has[name]
			if covered && q.Cmp(has) <= 0 || quota.Unbounded[name] {
				continue
			}
			c, most := largest(pod, name)
			of := "of which cluster queue " + quota.Queue + " has none"
			if covered {
				of = fmt.Sprintf("of which cluster queue %s has %s", quota.Queue, has.String())
			}
			wrong = append(wrong, fmt.Errorf("target %s: its pod asks for %s of %s, %s in container %s, %s: "+
				"it would never be admitted", job.Annotations[AnnotationTarget], q.String(), name, most.String(), c, of))
		}
	}
	return errors.Join(wrong...)
}

// A ResourceList has quantities by the name of the resource.
type ResourceList map[string]resource.Quantity

// podSpec is the part of a pod that says how much it asks for.
type podSpec struct{ InitContainers, Containers []container }

type container struct {
	Name, RestartPolicy string
	Resources           struct{ Requests ResourceList }
}

func (j *Job) pod() (podSpec, error) {
	var job struct {
		Spec struct {
			Template struct{ Spec podSpec }
		}
	}
	text, err := j.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &job)
	}
	return job.Spec.Template.Spec, err
}

// podNeeds is what a pod asks for: the containers that run together, or an init container that runs before some of
// them, if that is more.
func podNeeds(pod podSpec) ResourceList {
	together, alone := ResourceList{}, ResourceList{}
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != "" {
			add(together, c.Resources.Requests)
			continue
		}
		then := maps.Clone(together)
		add(then, c.Resources.Requests)
		raise(alone, then)
	}
	for _, c := range pod.Containers {
		add(together, c.Resources.Requests)
	}
	raise(together, alone)
	return together
}

func add(sum, more ResourceList) {
	for name, q := range more {
		total := sum[name]
		total.Add(q)
		sum[name] = total
	}
}

// raise makes each resource at least as much as the other list has.
func raise(list, other ResourceList) {
	for name, q := range other {
		if has, ok := list[name]; !ok || q.Cmp(has) > 0 {
			list[name] = q
		}
	}
}

// largest is the container that asks for most of a resource.
func largest(pod podSpec, name string) (in string, most resource.Quantity) {
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if q, ok := c.Resources.Requests[name]; ok && (in == "" || q.Cmp(most) > 0) {
			in, most = c.Name, q
		}
	}
	return in, most
}
