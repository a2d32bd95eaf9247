#include "rondo/compile/codegen/cpu/emit_llvm_random.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace rondo::compile {
namespace {

using llvm::Value;

int width_of(Value* v) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return vector != nullptr ? static_cast<int>(vector->getNumElements()) : 1;
}
// Returns the index in Stream::keys of the keys for `width` lanes.
size_t keys_for(int width) { return width == 1 ? 0 : width == 4 ? 1 : width == 8 ? 2 : 3; }

constexpr uint64_t kLow = 0xFFFFFFFF, kFirst = 0xD2511F53, kSecond = 0xCD9E8D57;

}  // namespace

// ---- The beginning of a call: streams and masks

void RandomEmitter::begin_call(llvm::ArrayRef<Value*> states, llvm::function_ref<bool(int32_t)> is_known) {
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    if (!kernel_.operands[i].is_random) continue;
    streams_.emplace(i, stream(states[i], kernel_.operands[i].increment));
    row_elements_[i] = b_.getInt64(0);
  }
  if (!streams_.empty() && !kernel_.split_columns) find_masks(is_known);
}

RandomEmitter::Stream RandomEmitter::stream(Value* state, int64_t increment) {
  Stream s;
  llvm::Type* i64 = b_.getInt64Ty();
  Value* seed = b_.CreateLoad(i64, state);
  Value* base = b_.CreateLoad(i64, b_.CreateConstInBoundsGEP1_64(i64, state, 1));
  Value* offset = b_.CreateAdd(base, b_.getInt64(static_cast<uint64_t>(increment)));
  s.offset_low = b_.CreateAnd(offset, kLow);
  s.offset_high = upper(offset);
  s.first_product = product(s.offset_low, kSecond);
  for (size_t half = 0; half < 2; ++half) {
    Value* key = half == 0 ? b_.CreateAnd(seed, kLow) : upper(seed);
    for (size_t round = 0; round < kRounds; ++round) {
      const uint64_t step = half == 0 ? 0x9E3779B9 : 0xBB67AE85;
      Value* now = b_.CreateAnd(b_.CreateAdd(key, b_.getInt64(step * round)), kLow);
      for (int width : {1, 4, 8, 16}) s.keys[keys_for(width)][round][half] = lift(now, width);
    }
  }
  return s;
}

// Returns a common divisor of the numbers, in the stream, of all rows' first elements. 0: all these numbers are 0.
int64_t RandomEmitter::divisor_of_rows(size_t operand) const {
  size_t at = 2;
  for (size_t i = 0; i < operand; ++i) at += 1 + 3 * kernel_.operands[i].axes.size();
  int64_t divisor = 0;
  for (const OperandAxis& axis : kernel_.operands[operand].axes) {
    const size_t position = at + 3;  // position of the stride in extents()
    at += 3;
    if (axis.stride == 0 || axis.size == 1) continue;
    const bool varies = position < kernel_.varying.size() && kernel_.varying[position] && may_vary(axis.stride);
    const int64_t known = position < kernel_.ranges.size() ? kernel_.ranges[position].multiple_of : 1;
    divisor = std::gcd(divisor, varies ? known : axis.stride);
  }
  return divisor;
}

// Chooses the masks of Note [Drawn masks].
void RandomEmitter::find_masks(llvm::function_ref<bool(int32_t)> is_known) {
  const bool cols_vary = !kernel_.varying.empty() && kernel_.varying[0] && may_vary(kernel_.cols);
  const int64_t most = !cols_vary ? kernel_.cols : kernel_.ranges.empty() ? INT64_MAX : kernel_.ranges[0].max;
  if (most > kMostKept) return;
  const auto steps = static_cast<uint64_t>((most + kLanes - 1) / kLanes);
  drawn_ = static_cast<size_t>(std::min(std::bit_ceil(std::max<uint64_t>(steps, 1)), uint64_t{kMostDrawn}));
  std::map<std::pair<int32_t, int32_t>, Value*> known;  // by operand and argument p
  for (const Stage& stage : kernel_.stages)
    for (int32_t id : stage.column) {
      const Instr& i = kernel_.instrs[static_cast<size_t>(id)];
      if (i.op != LoopOp::kRandomKeep || !is_known(i.a)) continue;
      if (kernel_.operands[static_cast<size_t>(i.index)].col_stride != 1) continue;
      Value*& bits = known[{i.index, i.a}];
      if (bits == nullptr) {
        bits = b_.CreateAlloca(b_.getInt16Ty(), b_.getInt64((steps + drawn_ - 1) / drawn_ * drawn_));
        masks_.push_back({id, bits});
      }
      bits_[id] = bits;
    }
}

void RandomEmitter::draw_masks(Value* cols, llvm::function_ref<Value*(int32_t)> value_of) {
  for (const Mask& mask : masks_) {
    const Instr& instr = kernel_.instrs[static_cast<size_t>(mask.id)];
    llvm::Function* function = b_.GetInsertBlock()->getParent();
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* loop = llvm::BasicBlock::Create(b_.getContext(), "mask", function);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "drawn", function);
    b_.CreateBr(loop);
    b_.SetInsertPoint(loop);
    auto* column = b_.CreatePHI(b_.getInt64Ty(), 2, "m");
    column->addIncoming(b_.getInt64(0), before);
    llvm::SmallVector<Value*, kMostDrawn> lanes(drawn_);
    words_of(instr, column, b_.getInt64(1), lanes);
    for (size_t i = 0; i < lanes.size(); ++i)
      b_.CreateStore(b_.CreateBitCast(keeps(lanes[i], value_of(instr.a)), b_.getInt16Ty()),
                     kept_bits(mask.bits, column, i));
    Value* next = b_.CreateAdd(column, b_.getInt64(drawn_ * kLanes), "", true, true);
    column->addIncoming(next, b_.GetInsertBlock());
    b_.CreateCondBr(b_.CreateICmpSLT(next, cols), loop, after);
    b_.SetInsertPoint(after);
  }
}

// ---- The random numbers that instructions read

Value* RandomEmitter::scalar(const Instr& instr, Value* p) {
  const auto operand = static_cast<size_t>(instr.index);
  Value* drawn = word(streams_.at(operand), instr.op, row_elements_.at(operand));
  return instr.op == LoopOp::kRandomKeep ? keeps(drawn, p) : uniform(drawn);
}

Value* RandomEmitter::kept_bits(Value* bits, Value* column, size_t step) {
  Value* at = b_.CreateAdd(b_.CreateLShr(column, 4), b_.getInt64(step));
  static_assert(kLanes == 16);
  return b_.CreateGEP(b_.getInt16Ty(), bits, at);
}

void RandomEmitter::steps(int32_t id, Value* p, Value* column, Value* col_stride, llvm::MutableArrayRef<Value*> lanes) {
  if (const auto drawn = bits_.find(id); drawn != bits_.end()) {
    auto* mask = llvm::FixedVectorType::get(b_.getInt1Ty(), kLanes);
    for (size_t i = 0; i < lanes.size(); ++i)
      lanes[i] = b_.CreateBitCast(b_.CreateLoad(b_.getInt16Ty(), kept_bits(drawn->second, column, i)), mask);
    return;
  }
  const Instr& instr = kernel_.instrs[static_cast<size_t>(id)];
  words_of(instr, column, col_stride, lanes);
  for (Value*& lane : lanes) lane = instr.op == LoopOp::kRandomKeep ? keeps(lane, p) : uniform(lane);
}

void RandomEmitter::words_of(const Instr& instr, Value* column, Value* col_stride,
                             llvm::MutableArrayRef<Value*> lanes) {
  const auto operand = static_cast<size_t>(instr.index);
  Value* first = b_.CreateAdd(row_elements_.at(operand), b_.CreateMul(column, col_stride));
  const int64_t divisor = divisor_of_rows(operand);
  if (instr.op == LoopOp::kRandomKeep && kernel_.operands[operand].col_stride == 1 && divisor % 4 == 0) {
    neighbours(streams_.at(operand), first, divisor % (kLanes * std::ssize(lanes)) == 0, lanes);
  } else {
    llvm::SmallVector<llvm::Constant*, kLanes> numbers;
    for (uint64_t i = 0; i < kLanes; ++i) numbers.push_back(b_.getInt64(i));
    Value* apart = b_.CreateMul(llvm::ConstantVector::get(numbers), lift(col_stride, kLanes));
    for (size_t i = 0; i < lanes.size(); ++i) {
      Value* begin = b_.CreateAdd(first, b_.CreateMul(col_stride, b_.getInt64(i * kLanes)));
      lanes[i] = word(streams_.at(operand), instr.op, b_.CreateAdd(lift(begin, kLanes), apart));
    }
  }
}

Value* RandomEmitter::keeps(Value* words, Value* p) {
  const auto real = [&](double value) { return llvm::ConstantFP::get(b_.getDoubleTy(), value); };
  Value *exact = b_.CreateFMul(p, real(0x1p32)), *most = real(4294967295.0);
  Value* within = b_.CreateSelect(b_.CreateFCmpOLT(most, exact), most, exact);  // std::min
  Value* threshold = b_.CreateTrunc(b_.CreateFPToSI(within, b_.getInt64Ty()), b_.getInt32Ty());
  Value* any = b_.CreateFCmpOLT(p, real(1.0));
  const int width = width_of(words);
  return b_.CreateAnd(b_.CreateICmpUGE(words, lift(threshold, width)), lift(any, width));
}

Value* RandomEmitter::uniform(Value* words) {
  const int width = width_of(words);
  llvm::Type* f32 = b_.getFloatTy();
  if (width > 1) f32 = llvm::FixedVectorType::get(f32, static_cast<unsigned>(width));
  const auto real = [&](double value) { return llvm::ConstantFP::get(f32, value); };
  Value* number = b_.CreateSIToFP(b_.CreateLShr(words, 8), f32);
  Value* middle = b_.CreateFMul(b_.CreateFAdd(number, real(0.5)), real(0x1p-24));
  return b_.CreateSelect(b_.CreateFCmpOLT(middle, real(1.0)), middle, real(0x1.fffffep-1));
}

// ---- Words of Philox, from which the numbers are made

RandomEmitter::Words RandomEmitter::philox(const Stream& stream, Value* low, Value* high) {
  Words c{low, high, stream.offset_low, stream.offset_high};
  for (size_t round = 0; round < kRounds; ++round) {
    Value* first = product(c[0], kFirst);
    Value* second = round == 0 ? stream.first_product : product(c[2], kSecond);
    // Takes the key as a scalar if `a` and `b` are scalars, that is, the same for all counters.
    const auto key = [&](size_t half, Value* a, Value* b) {
      return stream.keys[keys_for(std::max(width_of(a), width_of(b)))][round][half];
    };
    c = {xor_of(upper(second), c[1], key(0, second, c[1])), second, xor_of(upper(first), c[3], key(1, first, c[3])),
         first};
  }
  return c;
}

void RandomEmitter::neighbours(const Stream& stream, Value* first, bool whole, llvm::MutableArrayRef<Value*> lanes) {
  const int width = kLanes / 4 * static_cast<int>(lanes.size());
  llvm::SmallVector<llvm::Constant*, kLanes> numbers;
  for (int i = 0; i < width; ++i) numbers.push_back(b_.getInt64(static_cast<uint64_t>(i)));
  Value* begin = b_.CreateLShr(first, 2);
  Value* counters = b_.CreateAdd(lift(begin, width), llvm::ConstantVector::get(numbers));
  const Words w = philox(stream, counters, upper(whole ? begin : counters));
  // Pairs words 0 and 1 of each counter, and words 2 and 3; then interleaves the pairs.
  const auto pairs = [&](Value* even, Value* odd) {
    Value* low = b_.CreateAnd(lift(even, width), llvm::ConstantInt::get(counters->getType(), kLow));
    return b_.CreateOr(low, b_.CreateShl(lift(odd, width), 32));
  };
  Value *front = pairs(w[0], w[1]), *back = pairs(w[2], w[3]);
  auto* vector = llvm::FixedVectorType::get(b_.getInt32Ty(), kLanes);
  for (size_t i = 0; i < lanes.size(); ++i) {
    llvm::SmallVector<int, kLanes> order;
    for (int j = 0; j < kLanes / 4; ++j) {
      const int counter = static_cast<int>(i) * kLanes / 4 + j;
      order.push_back(counter);
      order.push_back(counter + width);
    }
    lanes[i] = b_.CreateBitCast(b_.CreateShuffleVector(front, back, order), vector);
  }
}

Value* RandomEmitter::word(const Stream& stream, LoopOp op, Value* elements) {
  const int width = width_of(elements);
  Value* counters = op == LoopOp::kRandomKeep ? b_.CreateLShr(elements, 2) : elements;
  const Words w = philox(stream, counters, upper(counters));
  const auto at = [&](size_t k) { return low_words(lift(w[k], width)); };
  if (op != LoopOp::kRandomKeep) return at(op == LoopOp::kRandomFirst ? 0 : 1);
  const auto bit = [&](uint64_t mask) {
    llvm::Type* type = elements->getType();
    return b_.CreateICmpNE(b_.CreateAnd(elements, llvm::ConstantInt::get(type, mask)), llvm::ConstantInt::get(type, 0));
  };
  Value *odd = bit(1), *back = bit(2);
  return b_.CreateSelect(back, b_.CreateSelect(odd, at(3), at(2)), b_.CreateSelect(odd, at(1), at(0)));
}

// ---- Arithmetic on values in wide lanes

Value* RandomEmitter::lift(Value* v, int width) {
  return width_of(v) == width ? v : b_.CreateVectorSplat(static_cast<unsigned>(width), v);
}
// Returns `b` times the low half of each lane of `a`.
Value* RandomEmitter::product(Value* a, uint64_t b) {
  Value* low = b_.CreateAnd(a, llvm::ConstantInt::get(a->getType(), kLow));
  return b_.CreateMul(low, llvm::ConstantInt::get(a->getType(), b));
}
Value* RandomEmitter::xor_of(Value* a, Value* b, Value* c) {
  const int width = std::max({width_of(a), width_of(b), width_of(c)});
  return b_.CreateXor(b_.CreateXor(lift(a, width), lift(b, width)), lift(c, width));
}
Value* RandomEmitter::low_words(Value* v) {
  const int width = width_of(v);
  llvm::Type* word = b_.getInt32Ty();
  return b_.CreateTrunc(v, width == 1 ? word : llvm::FixedVectorType::get(word, static_cast<unsigned>(width)));
}

}  // namespace rondo::compile
