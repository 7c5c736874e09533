// Streams that wait for the same workers, and which of them is next: those that have started, the
// oldest first; then clients take turns, each with its oldest.
//
// Turns are places in a line that all WaitingStreams of a router share (round robin over those
// who have something, as in deficit round robin; Shreedhar and Varghese, SIGCOMM 1995). A client
// joins its end when it begins to wait here, and again whenever one of its streams is taken, so
// that a newcomer is behind one stream of each other client. Who cannot go keeps its place: in the
// end it is before everybody who can.
//
// Adding, removing and taking one cost O(log n). One thread.

#ifndef TANDEM_RUNTIME_REQUEST_WAITING_STREAMS_H_
#define TANDEM_RUNTIME_REQUEST_WAITING_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tandem {

// A stream, named so that it can be looked for again after anything has happened.
struct StreamKey {
  uint64_t request = 0;  // The request's counter: older ones come first.
  size_t stream = 0;
  auto operator<=>(const StreamKey&) const = default;
};

class WaitingStreams {
 public:
  // The smaller one of two goes first, whether they are in the same WaitingStreams or not.
  struct Place {
    uint64_t turn = 0;  // The client's. 0: the stream has started.
    StreamKey key;
    auto operator<=>(const Place&) const = default;
  };

  // The end of the line, which others share. Outlives this.
  explicit WaitingStreams(uint64_t* last_turn) : last_turn_(last_turn) {}

  void AddStarted(const StreamKey& key) { started_.insert(key); }
  // If its client has nothing else here, its turn is `turn`, which only this client has had; 0: it
  // joins the end.
  void Add(const StreamKey& key, const std::string& client, uint64_t turn);
  // It is here, and does not go to a worker: its client keeps its turn.
  void Remove(const StreamKey& key, const std::string& client);
  // The first goes to a worker. Not if empty.
  void TakeFirst();

  bool empty() const { return started_.empty() && turns_.empty(); }
  Place first() const;  // Not if empty.
  std::vector<Place> all() const;

 private:
  struct Client {
    uint64_t turn = 0;
    std::set<StreamKey> streams;  // Never empty.
  };

  uint64_t* const last_turn_;
  std::set<StreamKey> started_;
  std::map<std::string, Client> clients_;
  std::map<uint64_t, std::string> turns_;  // The turn of each of clients_.
};

}  // namespace tandem

#endif  // TANDEM_RUNTIME_REQUEST_WAITING_STREAMS_H_
