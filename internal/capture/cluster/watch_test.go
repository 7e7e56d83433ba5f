package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// fakeCluster is an API server in memory.
type fakeCluster struct {
	t      *testing.T
	api    *fake.FakeDynamicClient
	client *Client
}

func newFake(t *testing.T) *fakeCluster {
	t.Helper()
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		jobs: "JobList", pods: "PodList", events: "EventList", workloads: "WorkloadList", localQueues: "LocalQueueList",
	})
	opt := Options{TargetLabels: []string{"t/target"}, RunLabel: "t/run"}
	client := newClient(opt, api, "https://fake", "default")
	client.config, client.http = &rest.Config{Host: client.host}, &http.Client{Transport: fakeLogs{}}
	return &fakeCluster{t, api, client}
}

// fakeLogs answers what was asked for.
type fakeLogs struct{}

func (fakeLogs) RoundTrip(r *http.Request) (*http.Response, error) {
	text := "log of " + r.URL.Query().Get("container") + ", previous " + r.URL.Query().Get("previous") + "\nand more\n"
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text))}, nil
}

func toUnstructured(t *testing.T, object any) *unstructured.Unstructured {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(t, err)
	return &unstructured.Unstructured{Object: fields}
}

// put creates an object, or replaces it.
func (f *fakeCluster) put(kind schema.GroupVersionResource, object any) {
	f.t.Helper()
	u := toUnstructured(f.t, object)
	err := f.api.Tracker().Create(kind, u, "default")
	if apierrors.IsAlreadyExists(err) {
		err = f.api.Tracker().Update(kind, u, "default")
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// ready has a queue, a Job that runs, and its pod.
func (f *fakeCluster) running() *corev1.Pod {
	f.t.Helper()
	job := testJob()
	f.put(jobs, job)
	q := map[string]any{
		"apiVersion": kueueGroup + "/" + kueueVersion, "kind": "LocalQueue",
		"metadata": map[string]any{"name": "queue", "namespace": "default", "uid": "q"},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Active", "status": "True"}}},
	}
	if err := f.api.Tracker().Create(localQueues, &unstructured.Unstructured{Object: q}, "default"); err != nil {
		f.t.Fatal(err)
	}
	p := testPod()
	parse(f.t, pod(tapRuns, loadRuns, ""), &p.Status)
	f.put(pods, p)
	return p
}

func TestWatchTellsEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		p := f.running()
		var phases []Phase
		state, err := f.client.Watch(t.Context(), "j", Budgets{}, func(s State) {
			phases = append(phases, s.Phase)
			if s.Phase == Running {
				parse(t, pod(tapRuns, loadReady, ""), &p.Status)
				f.put(pods, p)
			}
		})
		require.True(t, err == nil && state.Phase == Ready, "%+v, %v", state, err)
		if diff := cmp.Diff([]Phase{Running, Ready}, phases); diff != "" {
			t.Error(diff)
		}
	})
}

// TestWatchLogs has the tail of the log of who is at fault, or of all.
func TestWatchLogs(t *testing.T) {
	all := "tap | log of tap, previous \ntap | and more\nloadgen | log of loadgen, previous \nloadgen | and more\n"
	for _, test := range []struct{ name, status, want string }{
		{"restarted", pod(crashed("tap", "Error", 1), loadRuns, ""), "tap | log of tap, previous true\ntap | and more\n"},
		{"not started", pod(tapRuns, waits("loadgen", "ErrImagePull"), ""), ""},
		{"nobody's fault", pod(tapRuns, loadRuns, "reason: Evicted, phase: Failed"), all},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				p := f.running()
				parse(t, test.status, &p.Status)
				f.put(pods, p)
				_, err := f.client.Watch(t.Context(), "j", Budgets{}, nil)
				var failed *FailedError
				if !errors.As(err, &failed) {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, failed.Text()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestWatchBudgets(t *testing.T) {
	tests := []struct {
		name    string
		budgets Budgets
		change  func(f *fakeCluster)
		after   time.Duration
		reason  string
		message string
	}{
		{
			name: "admission", budgets: Budgets{Admission: time.Hour, Start: time.Minute, Load: time.Minute}, after: time.Hour,
			change: func(f *fakeCluster) {
				job := testJob()
				*job.Spec.Suspend = true
				f.put(jobs, job)
				f.remove(pods, "p")
				w := toUnstructured(f.t, &workload{})
				w.Object = map[string]any{"metadata": map[string]any{
					"name": "w", "uid": "w", "namespace": "default", "labels": map[string]any{jobUIDLabel: "job-1"},
					"ownerReferences": []any{map[string]any{"uid": "job-1"}},
				}, "status": map[string]any{"conditions": []any{map[string]any{
					"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient unused quota",
				}}}}
				w.SetAPIVersion(kueueGroup + "/" + kueueVersion)
				w.SetKind("Workload")
				if err := f.api.Tracker().Create(workloads, w, "default"); err != nil {
					f.t.Fatal(err)
				}
			},
			reason: "NotAdmitted", message: "no quota after 1h0m0s: insufficient unused quota",
		},
		{
			name: "no node", budgets: Budgets{Admission: time.Minute, Start: time.Hour, Load: time.Minute}, after: time.Hour,
			change: func(f *fakeCluster) {
				p := testPod()
				p.Spec.NodeName = ""
				parse(f.t, "{conditions: [{type: PodScheduled, status: 'False', message: '0/4 nodes are available'}]}", &p.Status)
				f.put(pods, p)
			},
			reason: "NotScheduled", message: "admitted for 1h0m0s after it was admitted: 0/4 nodes are available",
		},
		{
			name: "the engine is never ready", budgets: Budgets{Admission: time.Minute, Start: time.Hour}, after: time.Hour,
			change: func(f *fakeCluster) {
				p := testPod()
				parse(f.t, pod("{name: tap, state: {running: {}}}", loadRuns, ""), &p.Status)
				f.put(pods, p)
			},
			reason: "NotStarted", message: "starting for 1h0m0s after it was admitted: waiting for tap",
		},
		{
			name: "load", budgets: Budgets{Admission: time.Minute, Start: time.Minute, Load: 2 * time.Hour}, after: 2 * time.Hour,
			change: func(*fakeCluster) {}, reason: "NotReady", message: "the load has not ended after 2h0m0s",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.running()
				test.change(f)
				began := time.Now()
				_, err := f.client.Watch(t.Context(), "j", test.budgets, nil)
				var failed *FailedError
				require.True(t, errors.As(err, &failed) && failed.State.Reason == test.reason && strings.Contains(err.Error(), test.message), "got %v, want %s: %s", err, test.reason, test.message)
				require.Equal(t, time.Since(began), test.after, "after")
			})
		})
	}
}

func (f *fakeCluster) remove(kind schema.GroupVersionResource, name string) {
	f.t.Helper()
	if err := f.api.Tracker().Delete(kind, "default", name); err != nil {
		f.t.Fatal(err)
	}
}

// TestWatchOutage has the server go away for good.
func TestWatchOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.running()
		var down atomic.Bool
		f.api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, apierrors.NewInternalError(errors.New("etcd is away"))
		})
		began := time.Now()
		_, err := f.client.Watch(t.Context(), "j", Budgets{}, func(State) { down.Store(true) })
		require.True(t, errors.Is(err, ErrOutage) && strings.Contains(err.Error(), "etcd is away"), "got %v, want that the server is out of reach", err)
		if got := time.Since(began); got < usualOutage || got > usualOutage+5*time.Minute {
			t.Errorf("after %v, want soon after %v", got, usualOutage)
		}
	})
}

// TestWatchRefused is an account that may not see what it must, or only what it can do without.
func TestWatchRefused(t *testing.T) {
	for _, test := range []struct {
		kind  string
		fatal bool
	}{
		{"pods", true}, {"jobs", true}, {"workloads", true}, {"events", false}, {"localqueues", false},
	} {
		t.Run(test.kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.running()
				f.remove(pods, "p")
				job := testJob()
				*job.Spec.Suspend = test.kind == "localqueues"
				f.put(jobs, job)
				began := time.Now()
				f.api.PrependReactor("*", test.kind, func(a clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("no role"))
				})
				_, err := f.client.Watch(t.Context(), "j", Budgets{Admission: time.Minute, Start: time.Minute}, nil)
				if test.fatal == (time.Since(began) > 0) || strings.Contains(err.Error(), "bind it to the role in deploy/") != test.fatal {
					t.Errorf("got %v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// TestWatchPodTakenAway waits a moment for who took a pod away to say why.
func TestWatchPodTakenAway(t *testing.T) {
	for _, test := range []struct {
		name, cause, want string
		after             time.Duration
	}{
		{"nobody says why", "", "PodDeleted", causeTime + pollTime},
		{"the deadline", "{conditions: [{type: FailureTarget, status: 'True', reason: DeadlineExceeded}]}", "DeadlineExceeded", pollTime},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.running()
				began := time.Now()
				_, err := f.client.Watch(t.Context(), "j", Budgets{}, func(s State) {
					if s.Phase != Running {
						return
					}
					f.remove(pods, "p")
					time.AfterFunc(time.Second, func() {
						job := testJob()
						parse(t, test.cause, &job.Status)
						f.put(jobs, job)
					})
				})
				var failed *FailedError
				if !errors.As(err, &failed) || failed.State.Reason != test.want || time.Since(began) != test.after {
					t.Errorf("got %v after %v, want %s after %v", err, time.Since(began), test.want, test.after)
				}
			})
		})
	}
}

func TestWatchEnds(t *testing.T) {
	t.Run("no job", func(t *testing.T) {
		_, err := newFake(t).client.Watch(t.Context(), "j", Budgets{}, nil)
		require.True(t, errors.Is(err, ErrNotFound) && strings.Contains(err.Error(), "https://fake"), "got %v", err)
	})
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.running()
			why := errors.New("why")
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := f.client.Watch(ctx, "j", Budgets{}, func(State) { cancel(why) })
			require.ErrorIs(t, err, why)
		})
	})
	t.Run("another job of its name", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.running()
			_, err := f.client.Watch(t.Context(), "j", Budgets{}, func(s State) {
				if s.Phase == Running {
					f.remove(jobs, "j")
					other := testJob()
					other.UID = "job-2"
					f.put(jobs, other)
				}
			})
			var failed *FailedError
			require.True(t, errors.As(err, &failed) && failed.State.Reason == "Deleted", "got %v, want that it is deleted", err)
		})
	})
}

// TestCallTriesAgain has a server that is busy for a while, and one that refuses.
func TestCallTriesAgain(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   error
		calls int
	}{
		{"busy", apierrors.NewTooManyRequests("later", 1), 4},
		{"broken", apierrors.NewInternalError(errors.New("x")), 4},
		{"refused", apierrors.NewForbidden(schema.GroupResource{}, "", nil), 1},
		{"expired", apierrors.NewUnauthorized("expired"), 2}, // the library asks for another token in between
		{"proxy", apierrors.NewGenericServerResponse(http.StatusBadGateway, "get", schema.GroupResource{}, "", "", 0, true), 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				_, err := call(t.Context(), newFake(t).client, func(context.Context) (int, error) {
					calls++
					return 0, test.err
				})
				require.True(t, errors.Is(err, test.err) && calls == test.calls, "%d calls, %v, want %d", calls, err, test.calls)
			})
		})
	}
	t.Run("mute", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, err := call(t.Context(), newFake(t).client, func(ctx context.Context) (int, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			})
			require.ErrorContains(t, err, "no answer in 30s")
		})
	})
}
