#include "services/server/wire_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/strings/str_format.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 64;
// Beside their contents: an unknown field, a string, a message, an element of a list.
constexpr int64_t kUnknownBytes = 64, kStringBytes = 48, kMessageBytes = 64, kElementBytes = 16;
// A packed element of one byte becomes four or eight.
constexpr int64_t kPackedExpansion = 8;

class Measure {
 public:
  Measure(CodedInputStream* in, int64_t most) : in_(in), most_(most) {}

  // False if it is no message, or takes too much.
  bool Walk(const Descriptor& type, int depth) {
    while (const uint32_t tag = in_->ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (!Field(field, WireFormatLite::GetTagWireType(tag), depth)) return false;
      if (bytes_ > most_) return false;
    }
    return in_->ConsumedEntireMessage();
  }
  int64_t bytes() const { return bytes_; }

 private:
  bool Field(const FieldDescriptor* field, WireFormatLite::WireType kind, int depth) {
    switch (kind) {
      case WireFormatLite::WIRETYPE_VARINT: {
        uint64_t ignored = 0;
        Element(field);
        return in_->ReadVarint64(&ignored);
      }
      case WireFormatLite::WIRETYPE_FIXED64:
        Element(field);
        return in_->Skip(8);
      case WireFormatLite::WIRETYPE_FIXED32:
        Element(field);
        return in_->Skip(4);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        return Delimited(field, depth);
      default:
        return false;  // Groups: nobody has any.
    }
  }

  void Element(const FieldDescriptor* field) {
    if (field == nullptr) {
      bytes_ += kUnknownBytes;
    } else if (field->is_repeated()) {
      bytes_ += kElementBytes;
    }
  }

  bool Delimited(const FieldDescriptor* field, int depth) {
    uint32_t size = 0;
    if (!in_->ReadVarint32(&size) || size > static_cast<uint32_t>(INT32_MAX)) return false;
    const int length = static_cast<int>(size);
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      bytes_ += kMessageBytes;
      if (depth == kMaxDepth) return false;
      const auto limit = in_->PushLimit(length);
      if (!Walk(*field->message_type(), depth + 1)) return false;
      in_->PopLimit(limit);
      return true;
    }
    if (field == nullptr) {
      bytes_ += kUnknownBytes + length;
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      bytes_ += kStringBytes + length;
    } else {
      bytes_ += kPackedExpansion * length;
    }
    return in_->Skip(length);
  }

  CodedInputStream* const in_;
  const int64_t most_;
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<int64_t> ParsedBytes(const grpc::ByteBuffer& wire, const Descriptor& type,
                                    int64_t max_expansion) {
  const auto size = static_cast<int64_t>(wire.Length());
  const int64_t most = max_expansion * size + kFreeParsedBytes;
  grpc::ByteBuffer shared(wire);  // The same slices: a reader wants to own one.
  grpc::ProtoBufferReader reader(&shared);
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(INT32_MAX);
  Measure measure(&in, most);
  const bool well_formed = measure.Walk(type, 0);
  if (measure.bytes() > most) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a message of %d bytes would take %d and more, at most %d are allowed",
                        size, measure.bytes(), most));
  }
  if (!well_formed) return absl::InvalidArgumentError("the message is broken");
  return measure.bytes();
}

}  // namespace tandem
