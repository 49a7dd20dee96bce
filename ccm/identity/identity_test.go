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

// The UID is read until it is known, however long that takes, and not once more. A CCM that ends reads no more.
func TestClusterUIDIsReadUntilKnown(t *testing.T) {
	forbidden, refused := apierrors.NewForbidden(schema.GroupResource{}, "", nil), errors.New("connection refused")
	const never = 365 * 24 * time.Hour
	for name, tc := range map[string]struct {
		failures           []error       // one each time, before the API server shows the namespace
		unknownFor, within time.Duration // when it is known, at the earliest and the latest
		asked              int
	}{
		"at once":                        {asked: 1},
		"the API server comes up":        {[]error{apierrors.NewServiceUnavailable("x"), refused}, 0, 2 * time.Second, 3},
		"the API server is off for long": {slices.Repeat([]error{refused}, 20), 5 * time.Minute, 10 * time.Minute, 21},
		"the permission comes late":      {[]error{forbidden, forbidden}, 2*time.Minute - time.Second, 3 * time.Minute, 3},
		"down, forbidden, down":          {[]error{refused, forbidden, refused}, time.Minute, 90 * time.Second, 4},
		"the CCM ends":                   {slices.Repeat([]error{refused}, 99), never, never, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kube := fake.NewClientset(&corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "cluster-uid"},
				})
				asked := 0
				kube.PrependReactor("get", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) {
					if asked++; asked <= len(tc.failures) {
						return true, nil, tc.failures[asked-1]
					}
					return false, nil, nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cluster := core.NewCluster("lab")
				Read(cluster).Start(ctx, kube)
				if tc.unknownFor == never {
					cancel()
				}
				if len(tc.failures) > 0 {
					time.Sleep(tc.unknownFor)
					require.Empty(t, cluster.UID())
				}
				time.Sleep(tc.within - tc.unknownFor)
				synctest.Wait()
				assert.Equal(t, tc.within != never, cluster.UID() == "cluster-uid")
				time.Sleep(time.Hour)
				assert.Equal(t, tc.asked, asked)
			})
		})
	}
}
