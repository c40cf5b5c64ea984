package reporter

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Whatever the bytes are: no panic, and what is accepted is within bounds and reads the same again.
func FuzzParseStartRequest(f *testing.F) {
	for _, seed := range []string{
		goodBody, "", "null", "{}", "[", `{"ip":"::1","port":1,"report_interval_ms":1,"lease_ttl_ms":1}`,
		`{"ip":null,"port":-1,"report_interval_ms":1e3,"lease_ttl_ms":"1"}`, goodBody + goodBody, `{"ip":{"ip":[{}]}}`, "{\"\xff\":1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseStartRequest(body)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v does not wrap ErrInvalid", err)
			}
			return
		}
		if !req.Target.IsValid() || req.Target.Port() == 0 || req.ReportInterval < time.Millisecond || req.ReportInterval > MaxInterval ||
			req.LeaseTTL < time.Millisecond || req.LeaseTTL > MaxLease {
			t.Fatalf("accepted %+v", req)
		}
		again, err := parseStartRequest(fmt.Appendf(nil, `{"ip": %q, "port": %d, "report_interval_ms": %d, "lease_ttl_ms": %d}`,
			req.Target.Addr(), req.Target.Port(), req.ReportInterval.Milliseconds(), req.LeaseTTL.Milliseconds()))
		if err != nil || again != req {
			t.Fatalf("%+v reads again as %+v, %v", req, again, err)
		}
	})
}
