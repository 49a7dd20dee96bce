package identity

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// failingKubeSystem is an API server that gives these errors for namespace kube-system, one
// each time, before it shows it. asked counts the questions.
func failingKubeSystem(failures ...error) (kube *fake.Clientset, asked *int) {
	kube = fake.NewClientset(&corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster-uid"},
	})
	asked = new(int)
	kube.PrependReactor("get", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) {
		if *asked++; *asked <= len(failures) {
			return true, nil, failures[*asked-1]
		}
		return false, nil, nil
	})
	return kube, asked
}

func advanceTime(d time.Duration) {
	time.Sleep(d) // Of the bubble's clock.
	synctest.Wait()
}

// The UID is read until it is known, however long that takes.
func TestClusterUIDIsReadUntilKnown(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	refused := errors.New("connection refused")
	for name, tc := range map[string]struct {
		failures          []error
		unknownFor, known time.Duration
	}{
		"at once": {},
		"the API server comes up": {
			failures: []error{apierrors.NewServiceUnavailable("x"), refused}, known: 2 * time.Second,
		},
		"the API server is off for long": {
			failures: slices.Repeat([]error{refused}, 20), unknownFor: 5 * time.Minute, known: 10 * time.Minute,
		},
		"the permission comes late": {
			failures: []error{forbidden, forbidden}, unknownFor: 2*time.Minute - time.Second, known: 3 * time.Minute,
		},
		"down, then forbidden, then down": {
			failures: []error{refused, forbidden, refused}, unknownFor: time.Minute, known: 90 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube, asked := failingKubeSystem(tc.failures...)
				cluster := core.NewCluster("lab")
				Read(cluster).Start(t.Context(), kube)
				if len(tc.failures) > 0 {
					advanceTime(tc.unknownFor)
					require.Empty(t, cluster.UID())
				}
				advanceTime(tc.known - tc.unknownFor)
				require.Equal(t, "cluster-uid", cluster.UID())
				assert.Equal(t, len(tc.failures)+1, *asked)
				advanceTime(time.Hour)
				assert.Equal(t, len(tc.failures)+1, *asked, "it never changes")
			})
		})
	}
}

func TestClusterUIDReadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube, asked := failingKubeSystem(slices.Repeat([]error{errors.New("connection refused")}, 100)...)
		ctx, cancel := context.WithCancel(t.Context())
		Read(core.NewCluster("lab")).Start(ctx, kube)
		cancel()
		advanceTime(time.Hour)
		assert.Equal(t, 1, *asked)
	})
}
