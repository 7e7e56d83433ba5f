package inspect

import (
	"cmp"
	"slices"
)

// idleMost is what part of their time clients may have been idle between two conversations, so that
// they count as clients that ask one after the other.
const idleMost = 0.05

// A conversation is a request and the turns that go on from it.
type conversation struct {
	first, last int     // asks: the one it begins with, and the one that ends last
	begin, end  float64 // ms
}

// conversations lists them by their beginning.
func (w *Workload) conversations() []conversation {
	var all []conversation
	of := make([]int, len(w.asks))
	for i := range w.asks {
		a := &w.asks[i]
		end := endOf(a.record)
		if a.parent < 0 {
			of[i] = len(all)
			all = append(all, conversation{i, i, a.at, end})
			continue
		}
		of[i] = of[a.parent]
		if c := &all[of[i]]; end > c.end {
			c.last, c.end = i, end
		}
	}
	return all
}

// most is how many conversations there were at a time.
func most(all []conversation) int {
	ends := make([]float64, len(all))
	for i := range all {
		ends[i] = all[i].end
	}
	slices.Sort(ends)
	peak, ended := 0, 0
	for i := range all {
		for ended < len(ends) && ends[ended] <= all[i].begin {
			ended++
		}
		peak = max(peak, i+1-ended)
	}
	return peak
}

// findClients tells whether the load had a fixed number of clients, each of which began its next
// conversation when it had ended one. That is so if every conversation beyond as many as there ever were
// at a time began so soon after another had ended that hardly any client was idle. Then it comes so long
// after that end, whenever that is.
func (w *Workload) findClients() {
	all := w.conversations()
	clients := most(all)
	if clients >= len(all) {
		return
	}
	before := make([]int, len(all)) // what the same client had before
	idle, busy := 0.0, 0.0
	var free []int // conversations that ended, whose client has no other, the first to end first
	open := []int{}
	for i := range all {
		busy += all[i].end - all[i].begin
		open = slices.DeleteFunc(open, func(j int) bool {
			ended := all[j].end <= all[i].begin
			if ended {
				free = append(free, j)
			}
			return ended
		})
		slices.SortFunc(free, func(x, y int) int { return cmp.Compare(all[x].end, all[y].end) })
		open = append(open, i)
		if before[i] = -1; i < clients {
			continue
		}
		// There is one: no more than so many were ever open.
		before[i], free = free[0], free[1:]
		idle += all[i].begin - all[before[i]].end
	}
	if idle > idleMost*busy {
		return
	}
	w.clients = clients
	for i := clients; i < len(all); i++ {
		a := &w.asks[all[i].first]
		a.parent, a.next = all[before[i]].last, true
	}
}
